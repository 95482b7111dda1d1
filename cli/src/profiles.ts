import fs from 'node:fs'
import { homedir } from 'node:os'
import path from 'node:path'
import type { OAuthTokens } from '@muster/client'
import { Failure } from './failure.ts'

/** Settings of a profile. */
export type Profile = { url?: string; project?: string; output?: string; ca_file?: string }

/** What a profile signs in with: tokens of a sign-in, or one token. It is sent to no other address. */
export type Credential = { url: string; tokens?: OAuthTokens; token?: string }

type Config = { profiles?: Record<string, Profile> }

const LOCK_WAIT_MS = 30_000
const LOCK_POLL_MS = 20
/** A lock is held for one request, which has a limit of 30 seconds. */
const LOCK_STALE_MS = 60_000

/** Returns the directory of profiles and credentials. */
const configDirectory = (): string =>
  process.env.MUSTER_CONFIG_DIR || path.join(process.env.XDG_CONFIG_HOME || path.join(homedir(), '.config'), 'muster')

const configFile = () => path.join(configDirectory(), 'config.yaml')
const credentialsFile = () => path.join(configDirectory(), 'credentials.json')

/** Returns the path of a cached file of a profile. */
export const cacheFile = (profile: string, name: string): string =>
  path.join(configDirectory(), 'cache', encodeURIComponent(profile), name)

/** Returns the name of the profile in use. */
export const profileName = (given?: string): string => given || process.env.MUSTER_PROFILE || 'default'

/** Returns the name of the profile of a command line that is not parsed yet. */
export function profileOf(args: readonly string[]): string {
  const at = args.findIndex(each => /^--profile(=|$)/.test(each))
  return profileName(args[at] === '--profile' ? args[at + 1] : args[at]?.slice('--profile='.length))
}

/** Writes a file that only this user can read, as a whole or not at all. */
export function writePrivate(file: string, text: string): void {
  fs.mkdirSync(path.dirname(file), { recursive: true, mode: 0o700 })
  const temporary = `${file}.${process.pid}.${crypto.randomUUID()}`
  fs.writeFileSync(temporary, text, { mode: 0o600, flag: 'wx' })
  fs.renameSync(temporary, file)
}

function readIfPresent(file: string): string | null {
  try {
    return fs.readFileSync(file, 'utf8')
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === 'ENOENT') return null
    throw new Failure(`${file} cannot be read: ${(error as Error).message}`)
  }
}

/** Returns all profiles. */
export async function readProfiles(): Promise<Record<string, Profile>> {
  const text = readIfPresent(configFile())
  if (text === null) return {}
  const { parse } = await import('yaml')
  try {
    return ((parse(text) ?? {}) as Config).profiles ?? {}
  } catch (error) {
    throw new Failure(`${configFile()}: ${(error as Error).message}`)
  }
}

/** Changes a profile; undefined removes it. */
export const saveProfile = (name: string, change: (profile: Profile) => Profile | undefined): Promise<void> =>
  withLock(async () => {
    const profiles = await readProfiles()
    const next = change(profiles[name] ?? {})
    if (next) profiles[name] = next
    else delete profiles[name]
    const { stringify } = await import('yaml')
    writePrivate(configFile(), stringify({ profiles }))
  })

/** Returns all credentials. @throws Failure if other users can read them */
export function readCredentials(): Record<string, Credential> {
  const file = credentialsFile()
  const text = readIfPresent(file)
  if (text === null) return {}
  requirePrivate(file, 0o077)
  requirePrivate(configDirectory(), 0o022)
  try {
    return JSON.parse(text)
  } catch {
    throw new Failure(`${file} is no JSON`)
  }
}

function requirePrivate(file: string, forbidden: number): void {
  if (process.platform === 'win32') return
  const { mode } = fs.statSync(file)
  if ((mode & forbidden) === 0) return
  const fix = fs.statSync(file).isDirectory() ? '700' : '600'
  throw new Failure(`${file} can be accessed by other users`, 1, `Run: chmod ${fix} ${file}`)
}

/** Stores the credential of a profile; null removes it. The caller holds the lock. */
export function storeCredential(profile: string, credential: Credential | null): void {
  const all = readCredentials()
  if (credential) all[profile] = credential
  else delete all[profile]
  writePrivate(credentialsFile(), JSON.stringify(all, null, 2))
}

/** Runs a function while no other process changes profiles or credentials. */
export async function withLock<T>(run: () => Promise<T>): Promise<T> {
  const file = path.join(configDirectory(), 'lock')
  fs.mkdirSync(configDirectory(), { recursive: true, mode: 0o700 })
  const end = Date.now() + LOCK_WAIT_MS
  const owner = `${process.pid} ${crypto.randomUUID()}`
  while (!takeLock(file, owner)) {
    if (Date.now() > end) throw new Failure(`another process holds ${file}`, 1, 'Delete it if no muster is running.')
    await new Promise(resolve => setTimeout(resolve, LOCK_POLL_MS))
  }
  try {
    return await run()
  } finally {
    // A process that was stopped for long may have lost the lock to another.
    if (readIfPresent(file) === owner) fs.rmSync(file, { force: true })
  }
}

function takeLock(file: string, owner: string): boolean {
  try {
    fs.writeFileSync(file, owner, { flag: 'wx', mode: 0o600 })
    return true
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code !== 'EEXIST') throw error
  }
  try {
    if (Date.now() - fs.statSync(file).mtimeMs < LOCK_STALE_MS && isRunning(readIfPresent(file))) return false
    // Only one process can rename it away.
    const stale = `${file}.${crypto.randomUUID()}`
    fs.renameSync(file, stale)
    fs.rmSync(stale, { force: true })
  } catch {}
  return false
}

function isRunning(owner: string | null): boolean {
  const pid = Number(owner?.split(' ')[0])
  // A lock without an owner is being written.
  if (!pid) return true
  try {
    process.kill(pid, 0)
    return true
  } catch (error) {
    return (error as NodeJS.ErrnoException).code === 'EPERM'
  }
}
