"""Images from images: restoration, generation, matching, rendering."""

import torch
from torch import nn
from torch.nn import functional as F

from .inputs import image
from .registry import Network, architecture

pictures = architecture(batch=(2, 3), side=(32, 48))
fixed = architecture(batch=(2, 3))
codes = architecture(batch=(2, 3))


def code(width: int = 16):
    return lambda batch: {"z": torch.randn(batch, width)}


class Dense(nn.Module):
    """A residual dense block in a residual one, as of ESRGAN (Wang et al. 2018)."""

    def __init__(self, width: int = 16, growth: int = 8):
        super().__init__()
        self.layers = nn.ModuleList(
            nn.Conv2d(width + k * growth, growth if k < 3 else width, 3, padding=1)
            for k in range(4)
        )

    def forward(self, x):
        seen = [x]
        for layer in self.layers[:-1]:
            seen.append(F.leaky_relu(layer(torch.cat(seen, 1)), 0.2))
        return x + 0.2 * self.layers[-1](torch.cat(seen, 1))


@pictures
def esrgan():
    return Network(
        nn.Sequential(
            nn.Conv2d(3, 16, 3, padding=1), Dense(), Dense(), nn.Upsample(scale_factor=2),
            nn.Conv2d(16, 16, 3, padding=1), nn.LeakyReLU(0.2), nn.Conv2d(16, 3, 3, padding=1),
        ),
        image(32, name="input"),
    )  # fmt: skip


@pictures
def edsr():
    """Pixels are shuffled (Lim et al. 2017)."""
    return Network(
        nn.Sequential(
            nn.Conv2d(3, 16, 3, padding=1), Residual(16), Residual(16),
            nn.Conv2d(16, 16 * 9, 3, padding=1), nn.PixelShuffle(3),
            nn.Conv2d(16, 3, 3, padding=1),
        ),
        image(32, name="input"),
    )  # fmt: skip


class Residual(nn.Module):
    def __init__(self, width: int, norm: type[nn.Module] = nn.Identity):
        super().__init__()
        self.layers = nn.Sequential(
            nn.ReflectionPad2d(1), nn.Conv2d(width, width, 3), norm(width), nn.ReLU(),
            nn.ReflectionPad2d(1), nn.Conv2d(width, width, 3), norm(width),
        )  # fmt: skip

    def forward(self, x):
        return x + self.layers(x)


@pictures
def cycle_gan():
    """Zhu et al. 2017."""
    norm = nn.InstanceNorm2d
    return Network(
        nn.Sequential(
            nn.ReflectionPad2d(3), nn.Conv2d(3, 8, 7), norm(8), nn.ReLU(),
            nn.Conv2d(8, 16, 3, 2, 1), norm(16), nn.ReLU(), Residual(16, norm),
            nn.ConvTranspose2d(16, 8, 3, 2, 1, 1), norm(8), nn.ReLU(),
            nn.ReflectionPad2d(3), nn.Conv2d(8, 3, 7), nn.Tanh(),
        ),
        image(32, name="input"),
    )  # fmt: skip


class Gated(nn.Module):
    """A block without activations (NAFNet, Chen et al. 2022)."""

    def __init__(self, width: int):
        super().__init__()
        self.norm = nn.GroupNorm(1, width)
        self.first = nn.Conv2d(width, 2 * width, 1)
        self.second = nn.Conv2d(2 * width, 2 * width, 3, padding=1, groups=2 * width)
        self.weigh = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Conv2d(width, width, 1))
        self.last = nn.Conv2d(width, width, 1)
        self.scale = nn.Parameter(torch.zeros(1, width, 1, 1))

    def forward(self, x):
        a, b = self.second(self.first(self.norm(x))).chunk(2, 1)
        gated = a * b
        return x + self.scale * self.last(gated * self.weigh(gated))


@pictures
def naf_net():
    return Network(
        nn.Sequential(
            nn.Conv2d(3, 16, 3, padding=1), Gated(16), nn.Conv2d(16, 32, 2, 2), Gated(32),
            nn.Conv2d(32, 64, 1), nn.PixelShuffle(2), Gated(16), nn.Conv2d(16, 3, 3, padding=1),
        ),
        image(32, name="input"),
    )  # fmt: skip


class ChannelAttention(nn.Module):
    """Attention of channels to channels (Restormer, Zamir et al. 2022)."""

    def __init__(self, width: int, heads: int = 2):
        super().__init__()
        self.heads = heads
        self.temperature = nn.Parameter(torch.ones(heads, 1, 1))
        self.project = nn.Conv2d(width, 3 * width, 1)
        self.mix = nn.Conv2d(3 * width, 3 * width, 3, padding=1, groups=3 * width)
        self.last = nn.Conv2d(width, width, 1)

    def forward(self, x):
        batch, width, height, columns = x.shape
        q, k, v = (
            part.reshape(batch, self.heads, width // self.heads, height * columns)
            for part in self.mix(self.project(x)).chunk(3, 1)
        )
        scores = F.normalize(q, dim=-1) @ F.normalize(k, dim=-1).transpose(-2, -1)
        attended = (scores * self.temperature).softmax(-1) @ v
        return x + self.last(attended.reshape(batch, width, height, columns))


@pictures
def restormer():
    return Network(
        nn.Sequential(
            nn.Conv2d(3, 16, 3, padding=1), ChannelAttention(16), nn.PixelUnshuffle(2),
            ChannelAttention(64), nn.PixelShuffle(2), nn.Conv2d(16, 3, 3, padding=1),
        ),
        image(32, name="input"),
    )  # fmt: skip


@fixed
def swin_2_sr():
    from transformers import Swin2SRConfig, Swin2SRForImageSuperResolution

    config = Swin2SRConfig(
        image_size=32, embed_dim=24, depths=[2, 2], num_heads=[2, 2], window_size=4, upscale=2,
        resi_connection="1conv",
    )  # fmt: skip
    return Network(Swin2SRForImageSuperResolution(config), image(32))


@codes
def dcgan():
    return Network(
        nn.Sequential(
            nn.Unflatten(1, (16, 1, 1)), nn.ConvTranspose2d(16, 32, 4), nn.BatchNorm2d(32),
            nn.ReLU(), nn.ConvTranspose2d(32, 16, 4, 2, 1), nn.BatchNorm2d(16), nn.ReLU(),
            nn.ConvTranspose2d(16, 3, 4, 2, 1), nn.Tanh(),
        ),
        lambda batch: {"input": torch.randn(batch, 16)},
    )  # fmt: skip


class Modulated(nn.Module):
    """A convolution whose weights each image scales (StyleGAN2, Karras et al. 2020)."""

    def __init__(self, inputs: int, outputs: int, style: int):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(outputs, inputs, 3, 3))
        self.scale = nn.Linear(style, inputs)
        self.noise = nn.Parameter(torch.zeros(1))
        self.register_buffer("fixed_noise", torch.randn(1, 1, 8, 8))

    def forward(self, x, style):
        batch, channels, height, width = x.shape
        weight = self.weight * (1 + self.scale(style)).reshape(batch, 1, channels, 1, 1)
        norm = torch.rsqrt(weight.square().sum((2, 3, 4), keepdim=True) + 1e-8)
        weight = (weight * norm).reshape(-1, channels, 3, 3)
        flat = x.reshape(1, batch * channels, height, width)
        made = F.conv2d(flat, weight, padding=1, groups=batch)
        made = made.reshape(batch, -1, height, width) + self.noise * self.fixed_noise
        return F.leaky_relu(made, 0.2) * 2**0.5


class StyleGenerator(nn.Module):
    def __init__(self):
        super().__init__()
        self.map = nn.Sequential(nn.Linear(16, 16), nn.LeakyReLU(0.2), nn.Linear(16, 16))
        self.constant = nn.Parameter(torch.randn(1, 16, 4, 4))
        self.layers = nn.ModuleList(Modulated(16, 16, 16) for _ in range(2))
        self.last = nn.Conv2d(16, 3, 1)

    def forward(self, z):
        style = self.map(z * torch.rsqrt(z.square().mean(1, keepdim=True) + 1e-8))
        x = F.interpolate(
            self.constant.expand(z.shape[0], -1, -1, -1), scale_factor=2, mode="bilinear"
        )
        for layer in self.layers:
            x = layer(x, style)
        return self.last(x)


@architecture()
def style_gan_2():
    return Network(StyleGenerator(), lambda: {"z": torch.randn(2, 16)})


class Coupling(nn.Module):
    """Affine couplings of halves, inverted (RealNVP, Dinh et al. 2017)."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(
            nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 16)) for _ in range(3)
        )

    def forward(self, z):
        volume = 0
        for layer in self.layers:
            kept, changed = z.chunk(2, -1)
            scale, shift = layer(kept).chunk(2, -1)
            scale = torch.tanh(scale)
            z = torch.cat([(changed - shift) * torch.exp(-scale), kept], -1).flip(-1)
            volume = volume - scale.sum(-1)
        return z, volume


@codes
def real_nvp():
    return Network(Coupling(), code())


class RadianceField(nn.Module):
    """Frequencies of positions, colours, and their sum along rays (Mildenhall et al. 2020)."""

    def __init__(self):
        super().__init__()
        self.first = nn.Sequential(nn.Linear(27, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU())
        self.second = nn.Sequential(nn.Linear(59, 32), nn.ReLU(), nn.Linear(32, 4))

    def forward(self, origin, direction):
        depth = torch.linspace(0.1, 2.0, 12)
        points = origin[:, None] + direction[:, None] * depth[:, None]
        bands = 2.0 ** torch.arange(4)
        angles = (points[..., None] * bands).flatten(-2)
        x = torch.cat([points, angles.sin(), angles.cos()], -1)
        colour, density = self.second(torch.cat([self.first(x), x], -1)).split([3, 1], -1)
        opacity = 1 - torch.exp(-F.softplus(density[..., 0]) * 0.17)
        passed = torch.cumprod(torch.cat([torch.ones_like(opacity[:, :1]), 1 - opacity], 1), 1)
        weight = opacity * passed[:, :-1]
        return (weight[..., None] * colour.sigmoid()).sum(1), (weight * depth).sum(1)


@architecture(rays=(9, 14))
def radiance_field():
    def inputs(rays):
        return {"origin": torch.randn(rays, 3), "direction": torch.randn(rays, 3)}

    return Network(RadianceField(), inputs)


class Correlated(nn.Module):
    """Flow of two images, updated from a volume of correlations (RAFT, Teed and Deng 2020)."""

    def __init__(self, width: int = 16, radius: int = 2):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(3, width, 7, 4, 3), nn.InstanceNorm2d(width), nn.ReLU(),
            nn.Conv2d(width, width, 3, 2, 1),
        )  # fmt: skip
        self.radius = radius
        taps = (2 * radius + 1) ** 2
        self.update = nn.Conv2d(taps + 2 + width, 3 * width, 3, padding=1)
        self.last = nn.Conv2d(width, 2, 3, padding=1)
        self.mask = nn.Conv2d(width, 64 * 9, 1)

    def forward(self, first, second):
        a, b = self.features(first), self.features(second)
        batch, width, rows, columns = a.shape
        volume = (a.flatten(2).transpose(1, 2) @ b.flatten(2)) / width**0.5
        volume = volume.reshape(batch * rows * columns, 1, rows, columns)
        grid = torch.meshgrid(torch.arange(rows), torch.arange(columns), indexing="ij")
        places = torch.stack(grid[::-1], 0).float()[None].expand(batch, -1, -1, -1)
        offset = torch.arange(-self.radius, self.radius + 1).float()
        window = torch.stack(torch.meshgrid(offset, offset, indexing="ij"), -1)
        flow, hidden = torch.zeros_like(places), torch.tanh(a)
        for _ in range(2):
            centre = (places + flow).permute(0, 2, 3, 1).reshape(-1, 1, 1, 2)
            where = (centre + window) * 2 / torch.tensor([columns - 1, rows - 1]) - 1
            seen = F.grid_sample(volume, where, align_corners=True)
            seen = seen.reshape(batch, rows, columns, -1).permute(0, 3, 1, 2)
            z, r, q = self.update(torch.cat([seen, flow, hidden], 1)).chunk(3, 1)
            hidden = (1 - z.sigmoid()) * hidden + z.sigmoid() * torch.tanh(r.sigmoid() * q)
            flow = flow + self.last(hidden)
        mask = self.mask(hidden).reshape(batch, 1, 9, 8, 8, rows, columns).softmax(2)
        near = F.unfold(8 * flow, 3, padding=1).reshape(batch, 2, 9, 1, 1, rows, columns)
        up = (mask * near).sum(2).permute(0, 1, 4, 2, 5, 3)
        return up.reshape(batch, 2, 8 * rows, 8 * columns)


@fixed
def optical_flow():
    def inputs(batch):
        return {name: torch.randn(batch, 3, 32, 32) for name in ("first", "second")}

    return Network(Correlated(), inputs)


@fixed
def super_point():
    """Keypoints before their number is known: scores and descriptors."""
    from transformers import SuperPointConfig, SuperPointForKeypointDetection

    config = SuperPointConfig(
        encoder_hidden_sizes=[8, 16, 16, 24], decoder_hidden_size=24, descriptor_decoder_dim=16
    )
    model = SuperPointForKeypointDetection(config)

    class Dense(nn.Module):
        def __init__(self):
            super().__init__()
            self.model = model

        def forward(self, pixel_values):
            found = self.model.encoder(pixel_values[:, :1])[0]
            return self.model.keypoint_decoder._get_pixel_scores(found)

    return Network(Dense(), image(32))


@pictures
def u2_net():
    """Nested: a small network with dilations for each block (Qin et al. 2020)."""

    def block(inputs, outputs, dilation=1):
        return nn.Sequential(
            nn.Conv2d(inputs, outputs, 3, padding=dilation, dilation=dilation),
            nn.BatchNorm2d(outputs), nn.ReLU(),
        )  # fmt: skip

    class Nested(nn.Module):
        def __init__(self, inputs, outputs):
            super().__init__()
            self.first = block(inputs, outputs)
            self.down = nn.ModuleList([block(outputs, 8), block(8, 8)])
            self.bottom = block(8, 8, 2)
            self.up = nn.ModuleList([block(16, 8), block(16, outputs)])
            self.pool = nn.MaxPool2d(2, 2, ceil_mode=True)

        def forward(self, x):
            first = self.first(x)
            a = self.down[0](first)
            b = self.down[1](self.pool(a))
            x = self.up[0](torch.cat([self.bottom(b), b], 1))
            x = F.interpolate(x, size=a.shape[2:], mode="bilinear")
            return self.up[1](torch.cat([x, a], 1)) + first

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.outer, self.inner = Nested(3, 8), Nested(8, 8)
            self.sides = nn.ModuleList(nn.Conv2d(8, 1, 3, padding=1) for _ in range(2))

        def forward(self, input):
            first = self.outer(input)
            second = self.inner(F.max_pool2d(first, 2, 2, ceil_mode=True))
            a, b = self.sides[0](first), self.sides[1](second)
            return torch.sigmoid(a + F.interpolate(b, size=a.shape[2:], mode="bilinear"))

    return Network(Net(), image(32, name="input"))
