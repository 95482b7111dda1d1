import type { Express } from 'express'
import { storageBackends } from './content/storage/backends.ts'
import { listBacklogs } from './control/retention/backlog.ts'
import { operations } from './core/api/operation.ts'
import { reportBacklogs } from './core/base/metrics.ts'
import type { Services } from './core/base/services.ts'
import { createHttp } from './core/http/adapter.ts'
import { mountDocuments } from './core/http/endpoints.ts'
import { readsOfCells } from './core/services/cell-facts.ts'
import { mountCompanySignIn } from './identity/company-sign-in/routes.ts'
import { mountConsole } from './identity/console/mount.ts'
import { mountOauth } from './identity/oauth/mount.ts'

export type App = {
  http: Express
  /** Makes /readyz answer 503. */
  drain(): void
}

/** Creates the HTTP application of a process from the loaded modules. */
export function createApp(services: Services): App {
  // Opened here so that a misconfiguration fails the start, not the first upload.
  storageBackends(services)
  let draining = false
  const http = createHttp(services, operations.all(), app => {
    mountCompanySignIn(app, services)
    mountDocuments(app, services, operations.all(), { draining: () => draining })
    reportBacklogs(() => readsOfCells(services, ({ pool }) => listBacklogs(pool)))
    mountOauth(app, services)
    mountConsole(app, services)
  })
  return {
    http,
    drain: () => {
      draining = true
    },
  }
}
