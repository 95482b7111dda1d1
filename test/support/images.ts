import { crc32, deflateSync } from 'node:zlib'

/** Headers of images with the sides given, followed by no pixels. */

export function pngHeader(width: number, height: number): Buffer {
  const bytes = Buffer.from('89504e470d0a1a0a0000000d4948445200000000000000000806000000', 'hex')
  bytes.writeUInt32BE(width, 16)
  bytes.writeUInt32BE(height, 20)
  return Buffer.concat([bytes, Buffer.alloc(1024), PNG_END])
}

const PNG_END = Buffer.from('0000000049454e44ae426082', 'hex')

/** A PNG in grey of one bit with rows that may be fewer than its header says; each begins with a zero and has an eighth of its width. */
export function png(width: number, height: number, rows: Buffer): Buffer {
  const header = Buffer.alloc(13)
  header.writeUInt32BE(width, 0)
  header.writeUInt32BE(height, 4)
  header[8] = 1
  const chunk = (type: string, data: Buffer) => {
    const body = Buffer.concat([Buffer.from(type, 'latin1'), data])
    const [length, sum] = [Buffer.alloc(4), Buffer.alloc(4)]
    length.writeUInt32BE(data.length)
    sum.writeUInt32BE(crc32(body))
    return Buffer.concat([length, body, sum])
  }
  return Buffer.concat([
    Buffer.from('89504e470d0a1a0a', 'hex'),
    chunk('IHDR', header),
    chunk('IDAT', deflateSync(rows)),
    PNG_END,
  ])
}

/** `before`: bytes of metadata in front of the frame header. */
export function jpegHeader(width: number, height: number, before = 0): Buffer {
  const segments: Buffer[] = []
  for (let left = before; left > 0; left -= 65_533) {
    const body = Buffer.alloc(Math.min(left, 65_533), 0x41)
    segments.push(Buffer.from([0xff, 0xe1, (body.length + 2) >> 8, (body.length + 2) & 255]), body)
  }
  const frame = Buffer.from('ffc000110800000000030122000211010311', 'hex')
  frame.writeUInt16BE(height, 5)
  frame.writeUInt16BE(width, 7)
  return Buffer.concat([Buffer.from('ffd8', 'hex'), ...segments, Buffer.from('ff', 'hex'), frame])
}

export function webpHeader(format: 'VP8 ' | 'VP8L' | 'VP8X', width: number, height: number): Buffer {
  const bytes = Buffer.alloc(64)
  bytes.write('RIFF\x38\0\0\0WEBP', 'latin1')
  bytes.write(format, 12, 'latin1')
  if (format === 'VP8L') {
    bytes[20] = 0x2f
    bytes.writeUInt32LE(((width - 1) | ((height - 1) << 14)) >>> 0, 21)
  } else if (format === 'VP8X') {
    bytes.writeUIntLE(width - 1, 24, 3)
    bytes.writeUIntLE(height - 1, 27, 3)
  } else {
    bytes.write('9d012a', 23, 'hex')
    bytes.writeUInt16LE(width, 26)
    bytes.writeUInt16LE(height, 28)
  }
  return bytes
}

/** A GIF with frames of the size of its screen, or of `frame`. */
export function gif(width: number, height: number, frames: number, frame = { width, height }): Buffer {
  const start = Buffer.from('47494638396100000000800000000000ffffff', 'hex')
  start.writeUInt16LE(width, 6)
  start.writeUInt16LE(height, 8)
  const image = Buffer.from('2c0000000000000000000202440100', 'hex')
  image.writeUInt16LE(frame.width, 5)
  image.writeUInt16LE(frame.height, 7)
  const control = Buffer.from('21f90400000000003b', 'hex').subarray(0, 8)
  return Buffer.concat([start, ...Array.from({ length: frames }, () => [control, image]).flat(), Buffer.from([0x3b])])
}
