import type { HeaderScan } from './media-header.ts'
import { MAX_FRAMES } from './media-limits.ts'

const PNG_START = Buffer.from('89504e470d0a1a0a0000000d49484452', 'hex')

/** Reads the IHDR chunk of a PNG, which must be the first. */
export function* scanPng(): HeaderScan {
  const bytes = yield { read: 24 }
  if (!bytes.subarray(0, 16).equals(PNG_START)) return null
  return { width: bytes.readUInt32BE(16), height: bytes.readUInt32BE(20), frames: 1 }
}

/** Bytes of segments before the frame header of a JPEG: metadata, profiles and previews. */
const MAX_JPEG_SEGMENTS = 16 * 1024 * 1024

const isFrameHeader = (marker: number): boolean =>
  marker >= 0xc0 && marker <= 0xcf && marker !== 0xc4 && marker !== 0xc8 && marker !== 0xcc

/** Markers without a segment. */
const isStandalone = (marker: number): boolean => marker === 0x01 || (marker >= 0xd0 && marker <= 0xd8)

/** Walks the segments of a JPEG to its frame header. */
export function* scanJpeg(): HeaderScan {
  const start = yield { read: 3 }
  if (start.readUIntBE(0, 3) !== 0xffd8ff) return null
  // The third byte begins the first marker.
  let marker = (yield { read: 1 })[0]
  for (let passed = 0; passed < MAX_JPEG_SEGMENTS; ) {
    if (marker === 0xff) {
      marker = (yield { read: 1 })[0]
      passed += 1
      continue
    }
    if (isFrameHeader(marker)) {
      const frame = yield { read: 7 }
      return { width: frame.readUInt16BE(5), height: frame.readUInt16BE(3), frames: 1 }
    }
    // Scan data or the end before a frame header, or stuffing in place of a marker.
    if (marker === 0xda || marker === 0xd9 || marker === 0) return null
    if (!isStandalone(marker)) {
      const length = (yield { read: 2 }).readUInt16BE(0)
      if (length < 2) return null
      if (length > 2) yield { skip: length - 2 }
      passed += length
    }
    if ((yield { read: 1 })[0] !== 0xff) return null
    marker = (yield { read: 1 })[0]
    passed += 2
  }
  return null
}

/** Reads the first chunk of a WebP: lossy, lossless, or the canvas of the extended format. */
export function* scanWebp(): HeaderScan {
  const bytes = yield { read: 25 }
  if (bytes.toString('latin1', 0, 4) !== 'RIFF' || bytes.toString('latin1', 8, 12) !== 'WEBP') return null
  const chunk = bytes.toString('latin1', 12, 16)
  if (chunk === 'VP8L') {
    if (bytes[20] !== 0x2f) return null
    const sides = bytes.readUInt32LE(21)
    return { width: (sides & 0x3fff) + 1, height: ((sides >>> 14) & 0x3fff) + 1, frames: 1 }
  }
  const more = yield { read: 5 }
  if (chunk === 'VP8X')
    return { width: bytes[24] + more.readUInt16LE(0) * 256 + 1, height: more.readUIntLE(2, 3) + 1, frames: 1 }
  if (chunk !== 'VP8 ' || bytes.readUInt16BE(23) !== 0x9d01 || more[0] !== 0x2a) return null
  return { width: more.readUInt16LE(1) & 0x3fff, height: more.readUInt16LE(3) & 0x3fff, frames: 1 }
}

/** Returns the bytes of a color table by the flags that declare it. */
const colorTableBytes = (flags: number): number => (flags & 0x80 ? 3 * 2 ** ((flags & 7) + 1) : 0)

/**
 * Walks the blocks of a GIF to its end, or past the allowed frames. A frame may be larger than the screen, so the
 * largest sides are returned.
 */
export function* scanGif(): HeaderScan {
  const start = yield { read: 13 }
  if (!/^GIF8[79]a$/.test(start.toString('latin1', 0, 6))) return null
  let width = start.readUInt16LE(6)
  let height = start.readUInt16LE(8)
  let frames = 0
  const global = colorTableBytes(start[10])
  if (global > 0) yield { skip: global }
  while (frames <= MAX_FRAMES) {
    const [block] = yield { read: 1 }
    if (block === 0x3b) break
    if (block === 0x21) {
      yield { skip: 1 }
      yield 'sub-blocks'
    } else if (block === 0x2c) {
      const frame = yield { read: 9 }
      width = Math.max(width, frame.readUInt16LE(0) + frame.readUInt16LE(4))
      height = Math.max(height, frame.readUInt16LE(2) + frame.readUInt16LE(6))
      frames += 1
      const local = colorTableBytes(frame[8])
      // The minimum code size follows.
      yield { skip: local + 1 }
      yield 'sub-blocks'
    } else return null
  }
  return frames === 0 ? null : { width, height, frames }
}
