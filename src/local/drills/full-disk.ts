import { execFile } from 'node:child_process'
import fs from 'node:fs'
import path from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { promisify } from 'node:util'
import { type EmbeddedServer, startEmbedded } from '../postgres.ts'
import { type Database, temporaryDirectory } from './deployment.ts'
import { type Drill, NotPossibleError } from './drill.ts'

const run = promisify(execFile)

const SIZE_MIB = 1024
const BLOCK = Buffer.alloc(1024 ** 2)

/** A server on a file system of its size. `fill` leaves no space on it; `free` ends that, and starts the server if it has ended. */
type SmallDisk = Database & { fill(): void; free(): Promise<void> }

async function openSmallDisk(): Promise<SmallDisk> {
  const directory = temporaryDirectory()
  fs.chmodSync(directory.path, 0o711)
  const mountPoint = path.join(directory.path, 'disk')
  fs.mkdirSync(mountPoint)
  await run('mount', ['-t', 'tmpfs', '-o', `size=${SIZE_MIB}m,mode=711`, 'tmpfs', mountPoint]).catch(error => {
    directory.remove()
    throw new NotPossibleError(
      `full-disk needs a small file system, and this user cannot mount one: ${String(error.stderr || error.message).trim()}`,
    )
  })
  const dir = path.join(mountPoint, 'pg')
  const ballast = path.join(mountPoint, 'ballast')
  const unmount = async () => {
    await run('umount', [mountPoint])
    directory.remove()
  }
  let server: EmbeddedServer
  try {
    server = await startEmbedded({ dir })
  } catch (error) {
    await unmount()
    throw error
  }
  const port = Number(new URL(server.url).port)
  return {
    url: server.url,
    fill: () => fillUp(ballast),
    free: async () => {
      fs.rmSync(ballast)
      server = await startEmbedded({ dir, port })
    },
    close: async () => {
      await server.stop()
      await unmount()
    },
  }
}

/** Writes a file until the file system has no space. */
function fillUp(file: string): void {
  const descriptor = fs.openSync(file, 'w')
  try {
    for (let size = BLOCK.length; size > 512; ) {
      try {
        fs.writeSync(descriptor, BLOCK, 0, size)
      } catch (error) {
        if ((error as NodeJS.ErrnoException).code !== 'ENOSPC') throw error
        size = Math.floor(size / 2)
      }
    }
  } finally {
    fs.closeSync(descriptor)
  }
}

/** The file system of the database server has no space for a while. */
export const fullDisk: Drill = {
  name: 'full-disk',
  summary: 'the file system of the database server has no space for a while',
  seconds: 40,
  openDatabase: openSmallDisk,
  async break({ database, seconds, note }) {
    const disk = database as SmallDisk
    await sleep((seconds * 1000) / 4)
    disk.fill()
    note('the disk is full')
    await sleep((seconds * 1000) / 4)
    await disk.free()
    note('the disk has space')
  },
}
