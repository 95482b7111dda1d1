import fs from 'node:fs'
import { registerHooks } from 'node:module'
import { belowRoot, RESOLUTIONS_FILE, type Resolutions } from './resolutions.ts'

/**
 * Writes what the imports of web, worker and command line resolve to, for `resolutions.ts`. By that their modules are in
 * the compile cache before several processes would compile them concurrently.
 */
fs.rmSync(RESOLUTIONS_FILE, { force: true })
const found: Resolutions = {}
registerHooks({
  resolve(specifier, context, next) {
    const resolved = next(specifier, context)
    const parent = belowRoot(context.parentURL)
    const address = belowRoot(resolved.url)
    if (parent !== null && address !== null && resolved.format && !context.conditions.includes('require')) {
      found[parent] ??= {}
      found[parent][specifier] = `${resolved.format} ${address}`
    }
    return resolved
  },
})
await import('./host.ts')
await import('./app.ts')
const written = new URL(`${RESOLUTIONS_FILE}.${process.pid}`)
fs.mkdirSync(new URL('.', RESOLUTIONS_FILE), { recursive: true })
fs.writeFileSync(written, JSON.stringify(found))
fs.renameSync(written, RESOLUTIONS_FILE)
process.exit()
