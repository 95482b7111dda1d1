import { AsyncLocalStorage } from 'node:async_hooks'
import { serviceNotReady } from '../api/errors.ts'

/** Whose work the process does in an async context. */
export type TenantContext = {
  /** A project, or a user whose request names none; null while that is not known. */
  tenant: string | null
  /** How long it may wait for a connection while others of the tenant's work hold all it may have. */
  patienceMs: number
  /** Whether nobody waits for the answer any more: its statements are cancelled. Absent for work that is finished in any case. */
  isAbandoned?: () => boolean
}

const current = new AsyncLocalStorage<TenantContext | undefined>()

/** Runs work for a tenant; what it learns of the tenant later is written into the tenancy. */
export const withTenant = <T>(tenancy: TenantContext, work: () => T): T => current.run(tenancy, work)

/** The tenancy of this async context, once its tenant is known. */
export function currentTenant(): (TenantContext & { tenant: string }) | undefined {
  const tenancy = current.getStore()
  return tenancy?.tenant ? (tenancy as TenantContext & { tenant: string }) : undefined
}

/** Whether the work of this async context is abandoned, to be asked later; undefined for work that is finished in any case. */
export const abandonmentNow = (): (() => boolean) | undefined => current.getStore()?.isAbandoned

/** Runs work that several callers wait for: it is not abandoned with the one that began it. */
export const withoutTenantLimit = <T>(work: () => T): T => {
  const tenancy = current.getStore()
  return tenancy?.isAbandoned ? current.run({ ...tenancy, isAbandoned: undefined }, work) : work()
}

/** Runs work that tenants share, such as a batch of what several have asked for. */
export const withoutTenant = <T>(work: () => T): T => current.run(undefined, work)

type Waiting = { resolve(): void; reject(error: unknown): void; until: number }

const EXPIRY_PERIOD_MS = 250

/**
 * Bounds what one tenant holds of something that all share. What is beyond its part waits in turn, and lets others of
 * its tenant alone pass before it.
 */
export class TenantLimiter {
  readonly #max: number
  readonly #held = new Map<string, number>()
  readonly #waiting = new Map<string, Waiting[]>()
  #expiry: NodeJS.Timeout | undefined

  constructor(max: number) {
    this.#max = max
  }

  /**
   * Takes one of the places of the tenant that this async context works for: undefined where there is a free one, else a
   * promise of one, which is rejected with SERVICE_NOT_READY when its patience ends. `leave` gives the place back.
   */
  enter({ tenant, patienceMs }: TenantContext & { tenant: string }): Promise<void> | undefined {
    const held = this.#held.get(tenant) ?? 0
    if (held < this.#max) {
      this.#held.set(tenant, held + 1)
      return
    }
    return new Promise((resolve, reject) => {
      const waiting = this.#waiting.get(tenant) ?? []
      waiting.push({ resolve, reject, until: performance.now() + patienceMs })
      this.#waiting.set(tenant, waiting)
      this.#expiry ??= withoutTenant(() => setInterval(() => this.#expire(), EXPIRY_PERIOD_MS))
    })
  }

  /** How many wait for a place. */
  get waiting(): number {
    return [...this.#waiting.values()].reduce((sum, { length }) => sum + length, 0)
  }

  leave(tenant: string): void {
    const next = this.#waiting.get(tenant)?.shift()
    if (next) {
      next.resolve()
      return
    }
    this.#waiting.delete(tenant)
    const held = (this.#held.get(tenant) as number) - 1
    if (held > 0) this.#held.set(tenant, held)
    else this.#held.delete(tenant)
  }

  #expire(): void {
    const now = performance.now()
    let some = false
    for (const [tenant, waiting] of this.#waiting) {
      const kept = waiting.filter(({ until }) => until > now)
      this.#waiting.set(tenant, kept)
      if (kept.length > 0) some = true
      for (const { reject, until } of waiting) if (until <= now) reject(busy())
    }
    if (some) return
    clearInterval(this.#expiry)
    this.#expiry = undefined
  }
}

const busy = () => serviceNotReady({ database: 'busy with other requests of the project' }, { retryAfterSeconds: 1 })
