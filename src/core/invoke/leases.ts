import { type IdempotencyClaim, LEASE_SECONDS, renewClaims } from '../api/idempotency.ts'
import { onSeparateConnection } from '../db/pool.ts'
import { withoutTenant } from '../db/tenant-context.ts'
import { processSingleton } from '../process/process-singleton.ts'

/** Of three renewals in a row two may fail. */
const BEAT_MS = (LEASE_SECONDS * 1000) / 4

/**
 * The claims of requests that this process carries out. Their leases are renewed in one statement; a request that ends
 * between two beats costs none.
 */
export const heldClaims = processSingleton(
  services => {
    const held = new Map<string, IdempotencyClaim>()
    let timer: NodeJS.Timeout | null = null
    let renewing = false

    const beat = async () => {
      if (renewing || held.size === 0) return
      renewing = true
      try {
        await renewClaims(services.pool, [...held.values()])
      } catch (error) {
        services.log.warn({ err: error }, 'idempotency claims not renewed')
      } finally {
        renewing = false
      }
    }

    return {
      hold(claim: IdempotencyClaim): void {
        held.set(claim.claim, claim)
        // The timer is no part of the request that starts it.
        timer ??= withoutTenant(() => onSeparateConnection(() => setInterval(beat, BEAT_MS))).unref()
      },
      drop({ claim }: IdempotencyClaim): void {
        held.delete(claim)
      },
      close(): void {
        if (timer) clearInterval(timer)
      },
    }
  },
  claims => claims.close(),
)
