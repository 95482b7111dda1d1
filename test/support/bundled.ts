import { registerHooks } from 'node:module'
import { pathToFileURL } from 'node:url'

/**
 * The programs that `bundle.ts` bundles, by the name of their bundle. Every process of the tests loads this module before
 * all others: one that is started with the file of a program runs its bundle.
 */
export const PROGRAMS = { web: 'src/web.ts', worker: 'jobs/worker.ts', host: 'test/support/host.ts' }

const root = pathToFileURL(`${import.meta.dirname}/../../`)
const bundles = new Map(
  Object.entries(PROGRAMS).map(([name, file]) => [
    new URL(file, root).href,
    new URL(`node_modules/.cache/bundles/${name}.mjs`, root).href,
  ]),
)

registerHooks({
  resolve(specifier, context, next) {
    const bundle = context.parentURL === undefined && bundles.get(specifier)
    return bundle ? { url: bundle, format: 'module', shortCircuit: true } : next(specifier, context)
  },
})
