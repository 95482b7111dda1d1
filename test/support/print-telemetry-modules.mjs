import { writeSync } from 'node:fs'
import { registerHooks } from 'node:module'

// Prints the packages of OpenTelemetry that this process loads.
registerHooks({
  resolve(specifier, context, next) {
    const found = next(specifier, context)
    if (found.url.includes('/@opentelemetry/')) writeSync(1, `LOADED ${found.url}\n`)
    return found
  },
})
