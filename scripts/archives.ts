import fs from 'node:fs'
import os from 'node:os'
import path from 'node:path'
import { type ZippableFile, zipSync } from 'fflate'
import { create } from 'tar'

/** Archives whose bytes depend on their files alone: sorted, without times and owners. */

/** Contents by path. */
export type Files = Record<string, string | Buffer>

const sorted = (files: Files): [string, Buffer][] =>
  Object.entries(files)
    .map(([name, content]): [string, Buffer] => [name, Buffer.from(content)])
    .sort(([a], [b]) => (a < b ? -1 : 1))

/** Returns a compressed tar archive; the files of `programs` are executable. */
export async function tarball(files: Files, programs: readonly string[] = []): Promise<Buffer> {
  const cwd = fs.mkdtempSync(path.join(os.tmpdir(), 'muster-archive-'))
  try {
    for (const [name, content] of sorted(files)) {
      const file = path.join(cwd, name)
      fs.mkdirSync(path.dirname(file), { recursive: true })
      fs.writeFileSync(file, content)
      fs.chmodSync(file, programs.includes(name) ? 0o755 : 0o644)
    }
    const options = { cwd, portable: true, mtime: new Date(0), gzip: { level: 9 } }
    return await create(options, Object.keys(files).sort()).concat()
  } finally {
    fs.rmSync(cwd, { recursive: true })
  }
}

/** File of a zip archive: of the first day of the format, made on Unix so that its permissions count. */
const zipped = (content: Buffer): ZippableFile => [
  content,
  { mtime: new Date(1980, 0, 1), os: 3, attrs: (0o100644 << 16) >>> 0 },
]

/** Returns a zip archive. */
export const zip = (files: Files): Buffer =>
  Buffer.from(
    zipSync(Object.fromEntries(sorted(files).map(([name, content]) => [name, zipped(content)])), { level: 9 }),
  )
