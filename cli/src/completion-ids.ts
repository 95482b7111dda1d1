import fs from 'node:fs'
import type { ApiCommand } from './commands.ts'
import type { Connection } from './connection.ts'
import { isId } from './ids.ts'
import { cacheFile, writePrivate } from './profiles.ts'

type Cached = Record<string, { at: number; items: [id: string, name: string][] }>

const MAX_AGE_MS = 10 * 60_000
const ITEMS_MAX = 100

const fileOf = (profile: string) => cacheFile(profile, 'ids.json')

function read(profile: string): Cached {
  try {
    return JSON.parse(fs.readFileSync(fileOf(profile), 'utf8'))
  } catch {
    return {}
  }
}

/** Stores the ids and names of a list for completion. */
export function rememberIds(
  { profile, options }: Pick<Connection, 'profile' | 'options'>,
  { path }: ApiCommand,
  items: readonly unknown[],
): void {
  // Of another address than the profile's the ids would mislead.
  if (options.url || options.printRequest) return
  const found = items.slice(0, ITEMS_MAX).flatMap((item): [string, string][] => {
    const { id, name, title, username } = item as Record<string, unknown>
    // Other text would be executed by a shell that completes it.
    return typeof id === 'string' && isId(id) ? [[id, String(name ?? title ?? username ?? '')]] : []
  })
  if (found.length === 0) return
  const now = Date.now()
  const fresh = Object.fromEntries(Object.entries(read(profile)).filter(([, { at }]) => now - at < MAX_AGE_MS))
  try {
    writePrivate(fileOf(profile), JSON.stringify({ ...fresh, [path]: { at: now, items: found } }))
  } catch {
    // Completion is a convenience: a command works where nothing can be stored.
  }
}

/** Returns the stored ids of a path parameter of a command. */
export function rememberedIds(profile: string, { path }: ApiCommand, parameter: string): [id: string, name: string][] {
  const { at, items } = read(profile)[path.slice(0, path.indexOf(`/{${parameter}}`))] ?? { at: 0, items: [] }
  return Date.now() - at < MAX_AGE_MS ? items : []
}
