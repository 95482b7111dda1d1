import { AsyncLocalStorage } from 'node:async_hooks'
import { serviceNotReady } from '../base/errors.ts'
import { DatabaseUnresponsiveError } from './database-errors.ts'

/** The tenant on whose behalf an async context runs. */
export type TenantContext = {
  /** ID of the project, or of the user if the request has no project; null until it is resolved. */
  tenant: string | null
  /** Longest wait for a connection while other work of the tenant holds all the tenant may have. */
  patienceMs: number
  /** Whether the caller is gone, so that statements are cancelled. Absent for work that must finish regardless. */
  isAbandoned?: () => boolean
  /** Operation or queue, for the watchdog of the event loop. */
  work?: string
}

const current = new AsyncLocalStorage<TenantContext | undefined>()

/** Runs `work` on behalf of a tenant. `context.tenant` may be filled in later, once the project is resolved. */
export const withTenant = <T>(context: TenantContext, work: () => T): T => current.run(context, work)

/** Returns the context once its tenant is resolved, undefined before and outside of one. */
export function currentTenant(): (TenantContext & { tenant: string }) | undefined {
  const context = current.getStore()
  return context?.tenant ? (context as TenantContext & { tenant: string }) : undefined
}

/** Returns the operation or queue and the tenant of this async context. */
export const currentWork = (): { work: string | null; project_id: string | null } => {
  const { work = null, tenant: project_id = null } = current.getStore() ?? {}
  return { work, project_id }
}

/** Returns the abandonment check of this async context, for a later call; undefined for work that must finish. */
export const abandonmentNow = (): (() => boolean) | undefined => current.getStore()?.isAbandoned

/** Runs work shared by several callers: the first caller's disconnect does not cancel it. */
export const withoutTenantLimit = <T>(work: () => T): T => {
  const context = current.getStore()
  return context?.isAbandoned ? current.run({ ...context, isAbandoned: undefined }, work) : work()
}

/** Runs work shared by tenants, such as a batch of requests. */
export const withoutTenant = <T>(work: () => T): T => current.run(undefined, work)

type Waiter = { resolve(): void; reject(error: unknown): void; since: number; patienceMs: number }

const EXPIRY_PERIOD_MS = 250

/** Longest wait of a request while connections are lost: each slot is then held until its statement is known as lost. */
const MAX_WAIT_WHILE_LOST_MS = 3000

/** Bounds the slots that one tenant holds of a shared resource. Excess work waits in FIFO order per tenant. */
export class TenantLimiter {
  readonly #max: number
  readonly #areConnectionsLost: () => boolean
  readonly #held = new Map<string, number>()
  readonly #waiters = new Map<string, Waiter[]>()
  #expiry: NodeJS.Timeout | undefined

  constructor(max: number, areConnectionsLost = () => false) {
    this.#max = max
    this.#areConnectionsLost = areConnectionsLost
  }

  /**
   * Acquires a slot of the tenant, to be returned by `release`. Returns undefined if one is free, otherwise a promise
   * that rejects with SERVICE_NOT_READY after `patienceMs`, or earlier while connections are lost.
   */
  acquire({ tenant, patienceMs }: TenantContext & { tenant: string }): Promise<void> | undefined {
    const held = this.#held.get(tenant) ?? 0
    if (held < this.#max) {
      this.#held.set(tenant, held + 1)
      return
    }
    return new Promise((resolve, reject) => {
      const waiters = this.#waiters.get(tenant) ?? []
      waiters.push({ resolve, reject, since: performance.now(), patienceMs })
      this.#waiters.set(tenant, waiters)
      this.#expiry ??= withoutTenant(() => setInterval(() => this.#expire(), EXPIRY_PERIOD_MS))
    })
  }

  /** Number of waiters for a slot. */
  get waiting(): number {
    return [...this.#waiters.values()].reduce((sum, { length }) => sum + length, 0)
  }

  /** Passes a slot to the tenant's first waiter, or frees it. */
  release(tenant: string): void {
    const next = this.#waiters.get(tenant)?.shift()
    if (next) {
      next.resolve()
      return
    }
    this.#waiters.delete(tenant)
    const held = (this.#held.get(tenant) as number) - 1
    if (held > 0) this.#held.set(tenant, held)
    else this.#held.delete(tenant)
  }

  #expire(): void {
    const now = performance.now()
    const mostMs = this.#areConnectionsLost() ? MAX_WAIT_WHILE_LOST_MS : Number.POSITIVE_INFINITY
    const isOver = ({ since, patienceMs }: Waiter) =>
      patienceMs < Number.POSITIVE_INFINITY && now - since >= Math.min(patienceMs, mostMs)
    let hasWaiters = false
    for (const [tenant, waiters] of this.#waiters) {
      const remaining = waiters.filter(waiter => !isOver(waiter))
      this.#waiters.set(tenant, remaining)
      if (remaining.length > 0) hasWaiters = true
      for (const waiter of waiters) if (isOver(waiter)) waiter.reject(databaseBusy())
    }
    if (hasWaiters) return
    clearInterval(this.#expiry)
    this.#expiry = undefined
  }
}

const databaseBusy = () =>
  serviceNotReady(
    { database: 'busy with other requests of the project' },
    { cause: new DatabaseUnresponsiveError('no connection is free'), retryAfterSeconds: 1 },
  )
