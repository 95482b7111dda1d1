/** Facts in the header of an image. `frames` is counted for GIFs only. */
export type Header = { width: number; height: number; frames: number }

/** What a scan consumes next: bytes to read, bytes to skip, or a chain of length-prefixed GIF sub-blocks to skip. */
type Step = { read: number } | { skip: number } | 'sub-blocks'

/** Reads a header in steps; null if the bytes do not have its format. Each `read` step returns its bytes. */
export type HeaderScan = Generator<Step, Header | null, Buffer>

const NOTHING = Buffer.alloc(0)

/** Longest single read of a scan, in bytes. */
const MAX_READ = 1024

/**
 * Most steps of a scan. A file of millions of empty blocks would occupy the event loop for seconds; real images have
 * hundreds of blocks before their header ends, animations a few per frame.
 */
const MAX_STEPS = 20_000

/** The bytes of a file, in order. */
export type Pieces = Iterable<Uint8Array> | AsyncIterable<Uint8Array>

/**
 * Runs a scan over the pieces of a file and stops reading when it returns. Keeps no more than MAX_READ bytes, so that a
 * hostile file costs neither memory nor more than one pass. Null if the file ends early or needs too many steps.
 */
export async function scanHeader(pieces: Pieces, scan: HeaderScan): Promise<Header | null> {
  let steps = 0
  const next = (bytes: Buffer) => (++steps > MAX_STEPS ? scan.return(null) : scan.next(bytes))
  let step = next(NOTHING)
  let gathered: Buffer = NOTHING
  let skipped = 0
  let inBlock = 0
  for await (const piece of pieces) {
    let at = 0
    while (!step.done && at < piece.length) {
      const { value } = step
      if (value === 'sub-blocks') {
        let ended = false
        while (at < piece.length && !ended) {
          if (inBlock > 0) {
            const part = Math.min(inBlock, piece.length - at)
            at += part
            inBlock -= part
          } else {
            inBlock = piece[at++]
            ended = inBlock === 0
          }
        }
        if (ended) step = next(NOTHING)
      } else if ('skip' in value) {
        const part = Math.min(value.skip - skipped, piece.length - at)
        at += part
        skipped += part
        if (skipped < value.skip) continue
        skipped = 0
        step = next(NOTHING)
      } else {
        const part = piece.subarray(at, at + Math.min(value.read, MAX_READ) - gathered.length)
        at += part.length
        gathered = gathered.length === 0 ? Buffer.from(part) : Buffer.concat([gathered, part])
        if (gathered.length < Math.min(value.read, MAX_READ)) continue
        const bytes = gathered
        gathered = NOTHING
        step = next(bytes)
      }
    }
    if (step.done) break
  }
  return step.done ? step.value : null
}
