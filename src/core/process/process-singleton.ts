import type { Services } from './services.ts'

/**
 * One instance of something for each process: a cache, a client, a loop. Opened when it is first asked for, closed in the
 * reverse order when the services close.
 */
export function processSingleton<T>(
  open: (services: Services) => T,
  close?: (value: T) => Promise<void> | void,
): (services: Pick<Services, 'state'>) => T {
  const key = {}
  return services => {
    const known = services.state.get(key)
    if (known) return known.value as T
    const value = open(services as Services)
    services.state.set(key, { value, ...(close ? { close: () => close(value) } : {}) })
    return value
  }
}
