//! What vLLM's NixlConnector (0.33) tells its peers: where regions are, and nothing about the inside of a page.

use std::io::Cursor;

use serde::Deserialize;

use crate::error::{Error, Result};
use crate::layout::{MAX_ENGINE_BYTES, MAX_LAYER_NAME_BYTES, MAX_LAYERS, MAX_REGIONS, MemoryKind};
use crate::units::{add, mul, wide};
use crate::wire::bounded::{Bytes, List, Map, Text};

/// The longest handshake that is read, NIXL's own metadata in it included: 4 MiB.
pub const MAX_HANDSHAKE_BYTES: usize = 1 << 22;

const NESTING: usize = 32;

type Word = Text<1_024>;
type Numbers = List<u64, MAX_REGIONS>;

/// A stock handshake, as its msgpack map: `NixlAgentMetadata` of vLLM 0.33. Fields that say nothing about pages are not kept.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
struct Fields {
    engine_id: Text<MAX_ENGINE_BYTES>,
    kv_caches_base_addr: Numbers,
    device_id: u64,
    num_blocks: u64,
    block_lens: Numbers,
    block_strides: Numbers,
    kv_cache_layout: Word,
    block_size: u64,
    #[serde(default)]
    ssm_sizes: (u64, u64),
    attn_backend_name: Word,
    #[serde(default = "one")]
    physical_blocks_per_logical_kv_block: u64,
    #[serde(default)]
    region_num_blocks: Option<Numbers>,
    #[serde(default)]
    region_names: Option<List<Text<MAX_LAYER_NAME_BYTES>, MAX_REGIONS>>,
    #[serde(default)]
    region_mem_types: Option<List<Text<16>, MAX_REGIONS>>,
    #[serde(default = "one")]
    dcp_size: u64,
    #[serde(default = "one")]
    pcp_size: u64,
    #[serde(default)]
    region_members: List<List<Text<MAX_LAYER_NAME_BYTES>, MAX_LAYERS>, MAX_REGIONS>,
    #[serde(default)]
    packed_member_layouts: Map<(u64, u64), MAX_LAYERS>,
}

const fn one() -> u64 {
    1
}

/// The envelope that travels: the metadata's bytes beside a hash.
#[derive(Deserialize)]
struct Envelope {
    #[serde(default)]
    compatibility_hash: Option<Word>,
    #[serde(default)]
    agent_metadata_bytes: Option<Bytes<MAX_HANDSHAKE_BYTES>>,
}

/// A captured handshake of a stock NixlConnector 0.33: where its regions are. Nothing in it says how a page is built.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StockHandshake {
    fields: Fields,
    hash: Option<String>,
}

/// The pages of one layer in a region of a stock peer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct StockRegion<'a> {
    pub(super) name: Option<&'a str>,
    /// Index of the region, its first address, and the bytes from its first block to the end of its last.
    pub(super) at: usize,
    pub(super) base: u64,
    pub(super) bytes: u64,
    /// Bytes from the start of a block to the layer's page in it.
    pub(super) offset: u64,
    pub(super) page_bytes: u64,
    pub(super) stride: u64,
    pub(super) pages: u64,
    pub(super) memory: MemoryKind,
}

impl StockHandshake {
    /// Reads `NixlHandshakePayload` or the `NixlAgentMetadata` inside it, as vLLM 0.33 encodes them. Unknown fields are ignored.
    ///
    /// # Errors
    /// [`Error::Limit`] when it is too long, [`Error::Wire`] when it does not decode or its lists are of unequal lengths.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self> {
        if bytes.len() > MAX_HANDSHAKE_BYTES {
            return Err(Error::limit("bytes of a handshake", wide(bytes.len()), wide(MAX_HANDSHAKE_BYTES)));
        }
        let envelope: Envelope = decode(bytes)?;
        let hash = envelope.compatibility_hash.map(|Text(hash)| hash);
        let fields: Fields = match &envelope.agent_metadata_bytes {
            Some(Bytes(inner)) => decode(inner)?,
            None => decode(bytes)?,
        };
        let regions = fields.kv_caches_base_addr.0.len();
        let lists = [
            ("block_lens", Some(fields.block_lens.0.len())),
            ("block_strides", Some(fields.block_strides.0.len())),
            ("region_num_blocks", fields.region_num_blocks.as_ref().map(|list| list.0.len())),
            ("region_names", fields.region_names.as_ref().map(|list| list.0.len())),
            ("region_mem_types", fields.region_mem_types.as_ref().map(|list| list.0.len())),
        ];
        for (field, found) in lists {
            if found.is_some_and(|found| found != regions) {
                return Err(wrong(field, format!("has not one entry for each of the {regions} regions")));
            }
        }
        for (field, value) in [
            ("block_size", fields.block_size),
            ("num_blocks", fields.num_blocks),
            ("physical_blocks_per_logical_kv_block", fields.physical_blocks_per_logical_kv_block),
            ("dcp_size", fields.dcp_size),
            ("pcp_size", fields.pcp_size),
        ] {
            if value == 0 {
                return Err(wrong(field, "is 0".to_owned()));
            }
        }
        Ok(Self { fields, hash })
    }

    /// The peer's engine id.
    pub fn engine(&self) -> &str {
        &self.fields.engine_id.0
    }

    /// The name of the first attention backend; different page formats share one.
    pub fn backend(&self) -> &str {
        &self.fields.attn_backend_name.0
    }

    /// The layout's name, which orders axes and says nothing of the inside of a slot.
    pub fn layout_name(&self) -> &str {
        &self.fields.kv_cache_layout.0
    }

    /// Tokens in a kernel page.
    pub const fn block_size(&self) -> u64 {
        self.fields.block_size
    }

    /// Kernel pages in a block of the scheduler.
    pub const fn pages_per_block(&self) -> u64 {
        self.fields.physical_blocks_per_logical_kv_block
    }

    /// Decode context-parallel ranks.
    pub const fn dcp_size(&self) -> u64 {
        self.fields.dcp_size
    }

    /// Bytes of the convolution and of the scan in a Mamba state; zero without one.
    pub const fn ssm_sizes(&self) -> (u64, u64) {
        self.fields.ssm_sizes
    }

    /// The number of regions.
    pub fn regions(&self) -> usize {
        self.fields.kv_caches_base_addr.0.len()
    }

    /// Bytes of one page of each region.
    pub fn block_lens(&self) -> &[u64] {
        &self.fields.block_lens.0
    }

    /// The hash that stock peers compare first, where the whole payload was captured.
    pub fn compatibility_hash(&self) -> Option<&str> {
        self.hash.as_deref()
    }

    /// NIXL's device id.
    pub(super) fn device(&self) -> Result<u32> {
        u32::try_from(self.fields.device_id).map_err(|_| Error::overflow("device_id"))
    }

    /// Every region, rows that pack several layers taken apart where the handshake says where each layer lies.
    pub(super) fn layer_regions(&self) -> Result<Vec<StockRegion<'_>>> {
        let fields = &self.fields;
        let mut all = Vec::new();
        for (at, base) in fields.kv_caches_base_addr.0.iter().enumerate() {
            let of = |list: &Numbers| list.0.get(at).copied().unwrap_or(0);
            let memory = match fields.region_mem_types.as_ref().and_then(|list| list.0.get(at)) {
                Some(Text(name)) => name.parse::<MemoryKind>()?,
                None => MemoryKind::Vram,
            };
            let pages = fields.region_num_blocks.as_ref().map_or(fields.num_blocks, of);
            let (page_bytes, stride) = (of(&fields.block_lens), of(&fields.block_strides));
            let name = fields.region_names.as_ref().and_then(|list| list.0.get(at)).map(|Text(name)| name.as_str());
            let members = fields.region_members.0.get(at).map_or(&[][..], |List(list)| list.as_slice());
            let term = "(blocks - 1) * block stride + block length";
            let bytes = add(mul(pages.saturating_sub(1), stride, term)?, page_bytes, term)?;
            let whole = StockRegion { name, at, base: *base, bytes, offset: 0, page_bytes, stride, pages, memory };
            let packed: Vec<_> =
                members.iter().filter_map(|Text(m)| Some((m, fields.packed_member_layouts.0.get(m)?))).collect();
            match (members, packed.as_slice()) {
                ([] | [_], []) => all.push(whole),
                (_, []) => {
                    return Err(wrong(
                        "region_members",
                        format!("{} layers share region {at}, and nothing says where each begins", members.len()),
                    ));
                }
                (_, packed) => {
                    for (member, (offset, bytes)) in packed {
                        let name = Some(member.as_str());
                        all.push(StockRegion { name, offset: *offset, page_bytes: *bytes, ..whole.clone() });
                    }
                }
            }
            if all.len() > MAX_REGIONS {
                return Err(Error::limit("regions of a handshake", wide(all.len()), wide(MAX_REGIONS)));
            }
        }
        Ok(all)
    }
}

fn decode<T: for<'de> Deserialize<'de>>(bytes: &[u8]) -> Result<T> {
    let mut reader = rmp_serde::Deserializer::new(Cursor::new(bytes));
    reader.set_max_depth(NESTING);
    let decoded = T::deserialize(&mut reader).map_err(|error| {
        let problem = error.to_string().chars().take(200).collect();
        Error::Wire { at: format!("handshake, byte {}", reader.position()), problem }
    })?;
    if reader.position() < wide(bytes.len()) {
        return Err(wrong("end", "bytes follow the handshake".to_owned()));
    }
    Ok(decoded)
}

fn wrong(field: &str, problem: String) -> Error {
    Error::Wire { at: format!("handshake, {field}"), problem }
}
