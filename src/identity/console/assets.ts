import fs from 'node:fs'
import path from 'node:path'
import { withIcon } from '#core/docs/icon.ts'

/** A file of the console with its compressed forms, as `npm run build` wrote them. */
export type Asset = { type: string; tag: string; bodies: { identity: Buffer; gzip?: Buffer; br?: Buffer } }

/** The built console: the page, in parts around its nonce, and its assets by path below `/app`. */
export type Console = { page: string[]; assets: ReadonlyMap<string, Asset> }

const TYPES: Record<string, string> = {
  '.js': 'text/javascript; charset=utf-8',
  '.css': 'text/css; charset=utf-8',
}

/** Placeholder of the nonce in the page. */
const NONCE = '{nonce}'

const readIfPresent = (file: string): Buffer | undefined => (fs.existsSync(file) ? fs.readFileSync(file) : undefined)

/** Reads the built console into memory, about 1 MB; null if it was not built. */
export function readConsole(directory: string): Console | null {
  const page = readIfPresent(path.join(directory, 'index.html'))
  if (!page) return null
  const assets = new Map<string, Asset>()
  for (const name of fs.readdirSync(path.join(directory, 'assets'))) {
    const type = TYPES[path.extname(name)]
    if (!type) continue
    const file = path.join(directory, 'assets', name)
    const identity = fs.readFileSync(file)
    const bodies = { identity, gzip: readIfPresent(`${file}.gz`), br: readIfPresent(`${file}.br`) }
    // Its name contains the hash of its content.
    assets.set(`/assets/${name}`, { type, tag: `"${name}"`, bodies })
  }
  return { page: withIcon(page.toString('utf8')).split(NONCE), assets }
}
