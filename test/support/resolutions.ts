import fs from 'node:fs'
import { registerHooks } from 'node:module'
import { pathToFileURL } from 'node:url'

/**
 * What imports resolve to, by importing module and specifier, as format and address. `find-resolutions.ts` finds it once
 * for a test command; to resolve them again takes 0.14 of the 1.3 s of processor time in which a worker starts. Every process
 * of tests loads this module before all others.
 */
export type Resolutions = Record<string, Record<string, string>>

const root = pathToFileURL(`${import.meta.dirname}/../../`).href
export const RESOLUTIONS_FILE = new URL('node_modules/.cache/resolutions.json', root)

/** The address of a module below the root of the checkout; null for others. */
export const belowRoot = (url: string | undefined): string | null =>
  url?.startsWith(root) ? url.slice(root.length) : null

let known: Resolutions | undefined

function read(): Resolutions {
  try {
    return JSON.parse(fs.readFileSync(RESOLUTIONS_FILE, 'utf8'))
  } catch {
    return {}
  }
}

registerHooks({
  resolve(specifier, context, next) {
    const parent = belowRoot(context.parentURL)
    if (parent === null || context.conditions.includes('require')) return next(specifier, context)
    known ??= read()
    const found = known[parent]?.[specifier]
    if (!found) return next(specifier, context)
    const [format, address] = found.split(' ', 2)
    return { url: root + address, format, shortCircuit: true }
  },
})
