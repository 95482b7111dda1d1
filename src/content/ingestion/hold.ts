import type { Tx } from '../../core/db/write.ts'
import type { Services } from '../../core/process/services.ts'
import { lockDocument } from '../documents/store.ts'
import { type Claim, renewLease } from './store.ts'

/** Another worker, a callback or a caller has the document now: write nothing, leave. */
export class Superseded extends Error {}

/** How long the lease of a worker is, and how often it renews it: often enough that it never seems to have stalled. */
export function leaseOf({ config }: Services): { leaseMs: number; beatMs: number } {
  const leaseMs = Math.min(config.INGESTION_LEASE_SECONDS * 1000, config.INGESTION_STALL_TIMEOUT_MS)
  return { leaseMs, beatMs: leaseMs / 4 }
}

/** A claim while it is worked on: its lease is renewed, and `signal` is aborted once it is lost. */
export class Hold {
  readonly claim: Claim
  readonly signal: AbortSignal
  readonly #services: Services
  readonly #lost = new AbortController()
  readonly #timer: NodeJS.Timeout

  constructor(services: Services, claim: Claim, outer: AbortSignal) {
    this.claim = claim
    this.#services = services
    this.signal = AbortSignal.any([outer, this.#lost.signal])
    this.#timer = setInterval(() => void this.#beat(), leaseOf(services).beatMs)
  }

  async #beat(): Promise<void> {
    try {
      if (!(await renewLease(this.#services.pool, this.claim, leaseOf(this.#services).leaseMs))) this.#lose()
    } catch (error) {
      this.#services.log.warn({ err: error, document_id: this.claim.document_id }, 'lease of an ingestion not renewed')
    }
  }

  #lose(): void {
    clearInterval(this.#timer)
    this.#lost.abort(new Superseded())
  }

  /** A transaction of who has the claim; what it writes has to depend on that. Raises Superseded once it is lost. */
  write<T>(work: (tx: Tx) => Promise<T>): Promise<T> {
    this.signal.throwIfAborted()
    return this.#services.write(work)
  }

  /** Takes the document's lock, then makes sure of the claim and renews its lease. Raises Superseded. */
  async guard(tx: Tx): Promise<void> {
    const document = await lockDocument(tx, this.claim.document_id)
    if (!document || !(await renewLease(tx, this.claim, leaseOf(this.#services).leaseMs))) throw new Superseded()
  }

  end(): void {
    clearInterval(this.#timer)
  }
}
