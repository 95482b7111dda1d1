import { registerHooks } from 'node:module'

// Resolves the packages of OpenTelemetry as if they were not installed.
registerHooks({
  resolve(specifier, context, next) {
    if (!specifier.startsWith('@opentelemetry/')) return next(specifier, context)
    throw Object.assign(new Error(`Cannot find package '${specifier}'`), { code: 'ERR_MODULE_NOT_FOUND' })
  },
})
