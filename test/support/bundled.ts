import { registerHooks } from 'node:module'
import path from 'node:path'
import { pathToFileURL } from 'node:url'

/**
 * The programs that `bundle.ts` bundles, by the name of their bundle. Every process of the tests loads this module
 * before all others: a process that is started with the file of a program runs its bundle.
 */
export const PROGRAMS = {
  web: 'src/web.ts',
  worker: 'jobs/worker.ts',
  muster: 'bin/muster.ts',
  host: 'test/support/host.ts',
}

export const root = path.resolve(import.meta.dirname, '../..')
/** Not below node_modules, which copies of the checkout may share. */
export const BUNDLES = path.join(root, '.data/bundles')

const bundles = new Map(
  Object.entries(PROGRAMS).map(([name, file]) => [
    pathToFileURL(path.join(root, file)).href,
    pathToFileURL(path.join(BUNDLES, `${name}.mjs`)).href,
  ]),
)

registerHooks({
  resolve(specifier, context, next) {
    const bundle = context.parentURL === undefined && bundles.get(specifier)
    return bundle ? { url: bundle, format: 'module', shortCircuit: true } : next(specifier, context)
  },
})
