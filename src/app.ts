import { readFileSync } from 'node:fs'
import type { Express } from 'express'
import { stores } from './content/storage/stores.ts'
import { createReadAudit } from './control/audit/reads.ts'
import { createRequestQuotas } from './control/quotas/requests.ts'
import { operations } from './core/api/operation.ts'
import { createHttp } from './core/http/adapter.ts'
import { mountDocuments } from './core/http/endpoints.ts'
import type { Services } from './core/process/services.ts'
import { createPrincipals } from './identity/principals.ts'

export const version = (
  JSON.parse(readFileSync(new URL('../package.json', import.meta.url), 'utf8')) as { version: string }
).version

export type App = {
  http: Express
  /** From now on /readyz answers 503. */
  drain(): void
  /** Writes what is still buffered. Call it after the last request and before the services close. */
  close(): Promise<void>
}

/** Puts the modules together into the HTTP application of one process. */
export function createApp(services: Services): App {
  const principals = createPrincipals(services)
  const quotas = createRequestQuotas(services)
  const reads = createReadAudit(services)
  // Says at the start what would fail at the first upload.
  stores(services)
  let draining = false
  const http = createHttp(
    services,
    operations.all(),
    {
      authenticate: principals.authenticate,
      countRequest: quotas.count,
      auditsReads: reads.enabledFor,
      recordRead: reads.record,
    },
    app => mountDocuments(app, services, operations.all(), { draining: () => draining, version }),
  )
  return {
    http,
    drain: () => {
      draining = true
    },
    close: async () => {
      await Promise.all([principals.close(), quotas.close(), reads.close()])
    },
  }
}
