import { crc32, deflateRawSync, gzipSync } from 'node:zlib'

/** Archives whose bytes depend on their files alone: sorted, without times and owners. */

/** Contents by path. */
export type Files = Record<string, string | Buffer>

const sorted = (files: Files): [string, Buffer][] =>
  Object.entries(files)
    .map(([name, content]): [string, Buffer] => [name, Buffer.from(content)])
    .sort(([a], [b]) => (a < b ? -1 : 1))

const BLOCK = 512

/** Returns a compressed archive of the format ustar; the files of `programs` are executable. */
export function tarball(files: Files, programs: readonly string[] = []): Buffer {
  const blocks = sorted(files).flatMap(([name, content]) => {
    if (Buffer.byteLength(name) > 100) throw new Error(`${name} is too long for a tar archive`)
    const header = Buffer.alloc(BLOCK)
    const octal = (value: number, at: number, length: number) =>
      header.write(value.toString(8).padStart(length - 1, '0'), at)
    header.write(name, 0)
    octal(programs.includes(name) ? 0o755 : 0o644, 100, 8)
    for (const at of [108, 116]) octal(0, at, 8)
    octal(content.length, 124, 12)
    octal(0, 136, 12)
    header.write('0', 156)
    header.write('ustar\x0000', 257, 'latin1')
    // The checksum counts its field as spaces.
    header.fill(' ', 148, 156)
    header.write(
      `${header
        .reduce((sum, byte) => sum + byte)
        .toString(8)
        .padStart(6, '0')}\0 `,
      148,
      'latin1',
    )
    return [header, content, Buffer.alloc((BLOCK - (content.length % BLOCK)) % BLOCK)]
  })
  return gzipSync(Buffer.concat([...blocks, Buffer.alloc(2 * BLOCK)]), { level: 9 })
}

/** The first day of the format, 1 January 1980. */
const DOS_DATE = 0x21

/** Returns a zip archive. */
export function zip(files: Files): Buffer {
  const parts: Buffer[] = []
  const directory: Buffer[] = []
  let offset = 0
  for (const [name, content] of sorted(files)) {
    const data = deflateRawSync(content, { level: 9 })
    const path = Buffer.from(name)
    // Version, flags with UTF-8 names, deflate, time, date, checksum and sizes: the same in both places.
    const common = Buffer.alloc(26)
    common.writeUInt16LE(20, 0)
    common.writeUInt16LE(0x800, 2)
    common.writeUInt16LE(8, 4)
    common.writeUInt16LE(DOS_DATE, 8)
    common.writeUInt32LE(crc32(content), 10)
    common.writeUInt32LE(data.length, 14)
    common.writeUInt32LE(content.length, 18)
    common.writeUInt16LE(path.length, 22)
    const entry = Buffer.alloc(46)
    entry.write('PK\x01\x02', 'latin1')
    // Made on Unix, so that the permissions count.
    entry.writeUInt16LE(0x0314, 4)
    common.copy(entry, 6)
    entry.writeUInt32LE((0o100644 << 16) >>> 0, 38)
    entry.writeUInt32LE(offset, 42)
    parts.push(Buffer.from('PK\x03\x04', 'latin1'), common, path, data)
    directory.push(entry, path)
    offset += 4 + common.length + path.length + data.length
  }
  const central = Buffer.concat(directory)
  const end = Buffer.alloc(22)
  end.write('PK\x05\x06', 'latin1')
  end.writeUInt16LE(directory.length / 2, 8)
  end.writeUInt16LE(directory.length / 2, 10)
  end.writeUInt32LE(central.length, 12)
  end.writeUInt32LE(offset, 16)
  return Buffer.concat([...parts, central, end])
}
