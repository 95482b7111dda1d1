import { execFile, execFileSync } from 'node:child_process'
import fs from 'node:fs'
import { tmpdir } from 'node:os'
import path from 'node:path'
import { promisify } from 'node:util'
import type { EmbeddedServer } from '#local/postgres.ts'
import { quietPort } from './postgres.ts'

const run = promisify(execFile)

/** Tests that execute every migration and the statements of every operation. */
export const PROFILE = ['test/core/database.test.ts', 'test/client/every.test.ts']

/** Where Debian and the packages of PostgreSQL for it keep the programs of each major version. */
const DEBIAN = '/usr/lib/postgresql'

/** Directories with the programs of servers on this machine, oldest first. */
export const serversHere = (): string[] =>
  fs
    .globSync(`${DEBIAN}/*/bin/initdb`)
    .map(file => path.dirname(file))
    .sort()

/** The user that runs a server for root, as which PostgreSQL refuses to run. */
const owner = () => {
  if (process.getuid?.() !== 0) return {}
  const id = (option: string) => Number(execFileSync('id', [option, 'postgres'], { encoding: 'utf8' }))
  return { uid: id('-u'), gid: id('-g') }
}

/** Starts a server with the programs of a directory, of any supported version, on data that is removed when it stops. */
export async function startOther(bin: string): Promise<EmbeddedServer & { pid: number }> {
  const user = owner()
  const folder = fs.mkdtempSync(path.join(tmpdir(), 'muster-other-postgres-'))
  if (user.uid !== undefined) fs.chownSync(folder, user.uid, user.gid)
  const data = path.join(folder, 'data')
  const program = (name: string, ...args: string[]) =>
    run(path.join(bin, name), args, { cwd: '/', env: { PATH: process.env.PATH, LC_ALL: 'C', TZ: 'UTC' }, ...user })
  const stop = async () => {
    await program('pg_ctl', 'stop', `--pgdata=${data}`, '--mode=immediate').catch(() => {})
    fs.rmSync(folder, { recursive: true, force: true })
  }
  try {
    await program(
      'initdb',
      `--pgdata=${data}`,
      '--username=muster',
      '--auth=trust',
      '--encoding=UTF8',
      '--locale=C',
      '--no-sync',
    )
    const port = await quietPort()
    const settings = ['listen_addresses=127.0.0.1', `port=${port}`, 'unix_socket_directories=', 'max_connections=300']
    const options = [...settings, 'fsync=off', 'synchronous_commit=off', 'jit=off'].map(each => `-c ${each}`).join(' ')
    await program('pg_ctl', 'start', `--pgdata=${data}`, `--log=${folder}/log`, `--options=${options}`)
    const pid = Number.parseInt(fs.readFileSync(path.join(data, 'postmaster.pid'), 'utf8'), 10)
    return { url: `postgres://muster@127.0.0.1:${port}/postgres`, pid, stop }
  } catch (error) {
    await stop()
    throw error
  }
}
