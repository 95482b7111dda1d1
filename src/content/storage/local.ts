import { randomUUID } from 'node:crypto'
import { createWriteStream } from 'node:fs'
import { mkdir, open, readdir, rename, rm } from 'node:fs/promises'
import path from 'node:path'
import type { Readable } from 'node:stream'
import { pipeline } from 'node:stream/promises'
import type { ByteRange, StorageBackend } from './backend.ts'

const TEMPORARY = '.tmp-'

const codeOf = (error: unknown): unknown => (error as NodeJS.ErrnoException).code

/** Flushes a directory: a rename is durable only after that. */
async function syncDirectory(directory: string): Promise<void> {
  const handle = await open(directory)
  try {
    await handle.sync()
  } finally {
    await handle.close()
  }
}

/** Stores bytes in a directory of this host or of a volume that all processes mount. */
export function localBackend(root: string): StorageBackend {
  const at = (location: string): string => path.join(root, location)
  const remove = (location: string): Promise<void> => rm(at(location), { force: true })
  async function read(location: string, range?: ByteRange): Promise<Readable | null> {
    try {
      const handle = await open(at(location))
      return handle.createReadStream(range)
    } catch (error) {
      if (codeOf(error) === 'ENOENT') return null
      throw error
    }
  }
  return {
    newLocation: ({ projectId, fileId }) => `${projectId}/${fileId}`,
    async write(source, location) {
      const target = at(location)
      const temporary = `${target}${TEMPORARY}${randomUUID()}`
      // Not recursive: if the volume of the root is not mounted, the write must fail.
      await mkdir(path.dirname(target)).catch(error => {
        if (codeOf(error) !== 'EEXIST') throw error
      })
      try {
        await pipeline(source, createWriteStream(temporary, { flags: 'wx', flush: true }))
        await rename(temporary, target)
        await syncDirectory(path.dirname(target))
      } catch (error) {
        await rm(temporary, { force: true })
        await remove(location)
        throw error
      }
    },
    commit: async () => {},
    read,
    readStaged: ({ location }) => read(location),
    delete: remove,
    async abandon(location) {
      await remove(location)
      const directory = path.dirname(at(location))
      const start = `${path.basename(location)}${TEMPORARY}`
      const names = await readdir(directory).catch(error => {
        if (codeOf(error) === 'ENOENT') return []
        throw error
      })
      for (const name of names) if (name.startsWith(start)) await rm(path.join(directory, name), { force: true })
    },
  }
}
