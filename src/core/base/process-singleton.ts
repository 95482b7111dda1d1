import type { Services } from './services.ts'

/**
 * Declares an instance per process and cell, such as a cache, a client or a loop. Opened on first use, closed with the services, in
 * reverse order.
 */
export function processSingleton<T>(
  open: (services: Services) => T,
  close?: (value: T) => Promise<void> | void,
): (services: Pick<Services, 'state'>) => T {
  const key = {}
  return services => {
    const existing = services.state.get(key)
    if (existing) return existing.value as T
    const value = open(services as Services)
    services.state.set(key, { value, ...(close ? { close: () => close(value) } : {}) })
    return value
  }
}

/** Declares an instance per process that all its cells share, such as a limit of the memory of the process. */
export function sharedSingleton<T>(
  open: (services: Services) => T,
  close?: (value: T) => Promise<void> | void,
): (services: Pick<Services, 'state' | 'home'>) => T {
  const of = processSingleton(open, close)
  return services => of(services.home ?? services)
}
