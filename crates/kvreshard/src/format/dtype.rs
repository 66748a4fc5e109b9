//! Element types: how many bytes an element has and what its bits mean.

use std::fmt;
use std::str::FromStr;

use crate::error::{Error, Result};

macro_rules! element_types {
    ($($(#[$doc:meta])* $variant:ident, $bytes:literal, $name:literal, [$($alias:literal),*];)+) => {
        /// The type and encoding of one element of a component.
        ///
        /// Two types of equal size are still two types: bytes copied from one to the other would mean something else. Types below a
        /// byte come in pairs (`fp4x2`, `i4x2`): their element is the byte. Which nibble is first, and where scales and zero points
        /// stand, belongs to the encoding that both sides name, not to this list.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[non_exhaustive]
        pub enum ElementType {
            $($(#[$doc])* $variant,)+
        }

        impl ElementType {
            /// Every element type, in the order of their declaration.
            pub const ALL: &'static [Self] = &[$(Self::$variant),+];

            /// Bytes of one element.
            pub const fn bytes(self) -> u64 {
                match self {
                    $(Self::$variant => $bytes,)+
                }
            }

            /// The name used in formats, on the wire and in messages.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $name,)+
                }
            }

            fn from_lower(text: &str) -> Option<Self> {
                match text {
                    $($name $(| $alias)* => Some(Self::$variant),)+
                    _ => None,
                }
            }
        }
    };
}

element_types! {
    /// bfloat16.
    Bf16, 2, "bf16", ["bfloat16"];
    /// IEEE binary16.
    F16, 2, "f16", ["float16", "half", "fp16"];
    /// IEEE binary32.
    F32, 4, "f32", ["float32", "fp32"];
    /// IEEE binary64.
    F64, 8, "f64", ["float64", "double", "fp64"];
    /// 8-bit float, 4 exponent bits, finite only (OCP): what NVIDIA and most AMD devices call fp8.
    F8E4m3fn, 1, "f8e4m3fn", ["float8_e4m3fn", "fp8_e4m3fn"];
    /// 8-bit float, 4 exponent bits, bias 8, no negative zero: what gfx94x calls fp8.
    F8E4m3fnuz, 1, "f8e4m3fnuz", ["float8_e4m3fnuz", "fp8_e4m3fnuz"];
    /// 8-bit float, 5 exponent bits, IEEE-like (OCP).
    F8E5m2, 1, "f8e5m2", ["float8_e5m2", "fp8_e5m2"];
    /// 8-bit float, 5 exponent bits, bias 16, no negative zero.
    F8E5m2fnuz, 1, "f8e5m2fnuz", ["float8_e5m2fnuz", "fp8_e5m2fnuz"];
    /// 8-bit float, 4 exponent bits, bias 15, as Triton stores it where the device has no fp8.
    F8E4m3b15, 1, "f8e4m3b15", ["float8_e4m3b15", "fp8e4b15", "fp8_e4m3b15"];
    /// A power of two in 8 bits (OCP UE8M0): a scale.
    F8E8m0, 1, "f8e8m0", ["float8_e8m0fnu", "float8_e8m0", "ue8m0"];
    /// Two 4-bit floats (e2m1) in a byte.
    Fp4x2, 1, "fp4x2", ["float4_e2m1fn_x2", "float4_e2m1x2"];
    /// Two 4-bit integers in a byte.
    I4x2, 1, "i4x2", ["int4x2"];
    /// Signed byte.
    I8, 1, "i8", ["int8"];
    /// Unsigned byte: also for packed codes that no other type describes.
    U8, 1, "u8", ["uint8"];
    /// Signed 16-bit integer.
    I16, 2, "i16", ["int16", "short"];
    /// Unsigned 16-bit integer.
    U16, 2, "u16", ["uint16"];
    /// Signed 32-bit integer.
    I32, 4, "i32", ["int32"];
    /// Unsigned 32-bit integer.
    U32, 4, "u32", ["uint32"];
    /// Signed 64-bit integer.
    I64, 8, "i64", ["int64"];
    /// Unsigned 64-bit integer.
    U64, 8, "u64", ["uint64"];
    /// One byte, 0 or 1.
    Bool, 1, "bool", ["bool_"];
}

impl FromStr for ElementType {
    type Err = Error;

    /// Understands the names of this crate, of torch (with or without `torch.`) and of numpy (with or without `numpy.`, `np.`), in
    /// any case. Names that torch and numpy use for different sizes (`int`, `long`, `float`, `byte`) are not among them.
    ///
    /// # Errors
    /// [`Error::Format`] naming the type. A plain `fp8` is refused: it stands for different encodings on different devices.
    fn from_str(text: &str) -> Result<Self> {
        let lower = text.to_ascii_lowercase();
        let bare = ["torch.", "numpy.", "np."].iter().find_map(|module| lower.strip_prefix(module)).unwrap_or(&lower);
        Self::from_lower(bare).ok_or_else(|| match bare {
            "fp8" | "float8" | "fp8_e4m3" | "float8_e4m3" => Error::format(
                format!("type {text:?}"),
                "names different encodings on different devices: say f8e4m3fn, f8e4m3fnuz, f8e4m3b15 or f8e5m2",
            ),
            _ => {
                let known: Vec<_> = Self::ALL.iter().map(|known| known.name()).collect();
                Error::format(format!("type {text:?}"), format!("is not known; known are {}", known.join(", ")))
            }
        })
    }
}

impl fmt::Display for ElementType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}
