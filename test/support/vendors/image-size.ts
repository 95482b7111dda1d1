/** Returns the longer side of a PNG, GIF or JPEG image in base64; 0 for other data. */
export function imageSize(base64: unknown): number {
  if (typeof base64 !== 'string') return 0
  const bytes = Buffer.from(base64.slice(0, 200_000), 'base64')
  if (bytes.length < 24) return 0
  if (bytes.readUInt32BE(0) === 0x89504e47) return Math.max(bytes.readUInt32BE(16), bytes.readUInt32BE(20))
  if (bytes.toString('latin1', 0, 3) === 'GIF') return Math.max(bytes.readUInt16LE(6), bytes.readUInt16LE(8))
  return bytes.readUInt16BE(0) === 0xffd8 ? jpegSize(bytes) : 0
}

/** Reads the frame header of a JPEG image, whose markers are 0xc0 to 0xcf without three tables. */
function jpegSize(bytes: Buffer): number {
  let at = 2
  while (at + 9 < bytes.length) {
    const marker = bytes[at + 1]!
    if (marker >= 0xc0 && marker <= 0xcf && ![0xc4, 0xc8, 0xcc].includes(marker))
      return Math.max(bytes.readUInt16BE(at + 5), bytes.readUInt16BE(at + 7))
    at += 2 + bytes.readUInt16BE(at + 2)
  }
  return 0
}
