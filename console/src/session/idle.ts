import { useEffect } from 'react'
import { idleSeconds, watchInput } from './input.ts'
import { prolong, signOut } from './tokens.ts'

/** Fraction of the idle time after which input prolongs the sign-in. */
const PROLONG_FRACTION = 1 / 6

/**
 * Signs out after minutes without input in any tab; 0 never. The service does the same when no tab is open any more: it
 * learns of input by refreshes.
 */
export function useIdleSignOut(minutes: number): void {
  useEffect(() => {
    if (minutes === 0) return
    const unwatch = watchInput(() => prolong(minutes * 60_000 * PROLONG_FRACTION))
    const timer = setInterval(() => {
      if (idleSeconds() > minutes * 60) void signOut('idle')
    }, 5000)
    return () => {
      clearInterval(timer)
      unwatch()
    }
  }, [minutes])
}
