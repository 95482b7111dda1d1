import { AsyncLocalStorage } from 'node:async_hooks'
import { AppError } from '../api/errors.ts'

/** Whose work the process does in an async context. */
export type Tenancy = {
  /** A project, or a user whose request names none; null while that is not known. */
  tenant: string | null
  /** How long it may wait for a connection while others of the tenant's work hold all it may have. */
  patienceMs: number
}

const current = new AsyncLocalStorage<Tenancy | undefined>()

/** Runs work for a tenant; what it learns of the tenant later is written into the tenancy. */
export const inTenancy = <T>(tenancy: Tenancy, work: () => T): T => current.run(tenancy, work)

/** Runs work that tenants share, such as a batch of what several have asked for. */
export const outsideTenancy = <T>(work: () => T): T => current.run(undefined, work)

type Waiting = { resolve(): void; reject(error: unknown): void; timer: NodeJS.Timeout | undefined }

/**
 * Bounds what one tenant holds of something that all share. What is beyond its part waits in turn, and lets others of
 * its tenant alone pass before it.
 */
export class TenantGate {
  readonly #max: number
  readonly #held = new Map<string, number>()
  readonly #waiting = new Map<string, Waiting[]>()

  constructor(max: number) {
    this.#max = max
  }

  /** Runs work that takes one of the tenant's places. Raises SERVICE_NOT_READY when it waited too long for one. */
  async run<T>(work: () => Promise<T>): Promise<T> {
    const tenancy = current.getStore()
    if (!tenancy?.tenant) return work()
    const { tenant } = tenancy
    const held = this.#held.get(tenant) ?? 0
    if (held < this.#max) this.#held.set(tenant, held + 1)
    else await this.#turn(tenant, tenancy.patienceMs)
    try {
      return await work()
    } finally {
      this.#leave(tenant)
    }
  }

  #turn(tenant: string, patienceMs: number): Promise<void> {
    return new Promise((resolve, reject) => {
      const queue = this.#waiting.get(tenant) ?? []
      const waiting: Waiting = { resolve, reject, timer: undefined }
      if (Number.isFinite(patienceMs))
        waiting.timer = setTimeout(() => {
          queue.splice(queue.indexOf(waiting), 1)
          reject(
            new AppError('SERVICE_NOT_READY', {
              meta: { checks: { database: 'busy with other requests of the project' } },
              headers: { 'Retry-After': '1' },
            }),
          )
        }, patienceMs)
      this.#waiting.set(tenant, queue)
      queue.push(waiting)
    })
  }

  #leave(tenant: string): void {
    const next = this.#waiting.get(tenant)?.shift()
    if (next) {
      clearTimeout(next.timer)
      next.resolve()
      return
    }
    this.#waiting.delete(tenant)
    const held = (this.#held.get(tenant) as number) - 1
    if (held > 0) this.#held.set(tenant, held)
    else this.#held.delete(tenant)
  }
}
