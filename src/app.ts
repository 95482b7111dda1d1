import type { Express } from 'express'
import { storageBackends } from './content/storage/backends.ts'
import { operations } from './core/api/operation.ts'
import { createHttp } from './core/http/adapter.ts'
import { mountDocuments } from './core/http/endpoints.ts'
import { release } from './core/process/release.ts'
import type { Services } from './core/process/services.ts'
import { mountCompanySignIn } from './identity/company-sign-in/routes.ts'
import { mountOauth } from './identity/oauth/mount.ts'

export type App = {
  http: Express
  /** From now on /readyz answers 503. */
  drain(): void
}

/** Puts the modules together into the HTTP application of one process. */
export function createApp(services: Services): App {
  // Fails at the start rather than at the first upload.
  storageBackends(services)
  let draining = false
  const http = createHttp(services, operations.all(), app => {
    mountCompanySignIn(app, services)
    mountDocuments(app, services, operations.all(), { draining: () => draining, version: release })
    mountOauth(app, services)
  })
  return {
    http,
    drain: () => {
      draining = true
    },
  }
}
