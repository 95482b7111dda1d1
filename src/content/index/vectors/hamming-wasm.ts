/**
 * WebAssembly module that counts differing bits sixteen bytes at a time, eight times as fast as 32 bits at a time in
 * JavaScript. It is assembled here; instructions are named as in the text format.
 */

const PAGE_BYTES = 65_536

/** Addresses in its memory: the code of the query, the distances, and consecutive codes. */
export const QUERY_AT = 0
export const DISTANCES_AT = PAGE_BYTES
export const CODES_AT = 2 * PAGE_BYTES
/** Capacity for codes: 4,096 of 2,048 bits. */
export const CODES_BYTES = 16 * PAGE_BYTES

const PAGES = (CODES_AT + CODES_BYTES) / PAGE_BYTES

const unsigned = (value: number): number[] =>
  value < 128 ? [value] : [(value & 127) | 128, ...unsigned(Math.floor(value / 128))]
const list = (items: number[][]): number[] => [...unsigned(items.length), ...items.flat()]
const sized = (bytes: number[]): number[] => [...unsigned(bytes.length), ...bytes]
const section = (id: number, bytes: number[]): number[] => [id, ...sized(bytes)]
const encodeName = (name: string): number[] => sized([...Buffer.from(name)])

const i32 = 0x7f
const v128 = 0x7b
const nothing = 0x40
const end = [0x0b]
const loop = [0x03, nothing]
const get = (local: number) => [0x20, local]
const set = (local: number) => [0x21, local]
const i32Const = (value: number) => [0x41, value]
const i32Add = [0x6a]
const i32LessThan = [0x49]
const branchIf = (depth: number) => [0x0d, depth]
const store16 = [0x3b, 1, 0]
const simd = (code: number, ...more: number[]) => [0xfd, ...unsigned(code), ...more]
const load = simd(0x00, 0, 0)
const zero = simd(0x0c, ...Array<number>(16).fill(0))
const lane = (index: number) => simd(0x1b, index)
const xor = simd(0x51)
const popcnt = simd(0x62)
const addPairsOf8 = simd(0x7d)
const addPairsOf16 = simd(0x7f)
const add16 = simd(0x8e)

const step = (local: number, bytes: number) => [get(local), i32Const(bytes), i32Add, set(local)]

/** differences(code, end, query, queryEnd, distance): addresses of whole codes; `end` is after the last one. */
const [code, codesEnd, query, queryEnd, distance, at, sum] = [0, 1, 2, 3, 4, 5, 6]
const body = [
  loop,
  ...[zero, set(sum), get(query), set(at)],
  loop,
  ...[get(code), load, get(at), load, xor, popcnt, addPairsOf8, get(sum), add16, set(sum)],
  ...step(code, 16),
  ...step(at, 16),
  ...[get(at), get(queryEnd), i32LessThan, branchIf(0)],
  end,
  ...[get(sum), addPairsOf16, set(sum), get(distance)],
  ...[get(sum), lane(0), get(sum), lane(1), i32Add, get(sum), lane(2), i32Add, get(sum), lane(3), i32Add],
  store16,
  ...step(distance, 2),
  ...[get(code), get(codesEnd), i32LessThan, branchIf(0)],
  end,
  end,
].flat()

const bytes = Uint8Array.from([
  ...[0x00, 0x61, 0x73, 0x6d, 1, 0, 0, 0],
  ...section(1, list([[0x60, ...list(Array<number[]>(5).fill([i32])), ...list([])]])),
  ...section(3, list([[0]])),
  ...section(5, list([[0, PAGES]])),
  ...section(
    7,
    list([
      [...encodeName('memory'), 2, 0],
      [...encodeName('differences'), 0, 0],
    ]),
  ),
  ...section(
    10,
    list([
      sized([
        ...list([
          [1, i32],
          [1, v128],
        ]),
        ...body,
      ]),
    ]),
  ),
])

/** The used part of the API, which Node's types do not include. */
declare const WebAssembly: {
  Module: new (bytes: Uint8Array) => object
  Instance: new (module: object) => { exports: unknown }
}

type Exports = {
  memory: { buffer: ArrayBuffer }
  differences(code: number, end: number, query: number, queryEnd: number, distance: number): void
}

export const { memory, differences } = new WebAssembly.Instance(new WebAssembly.Module(bytes)).exports as Exports
