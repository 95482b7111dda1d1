import type Provider from 'oidc-provider'
import { processSingleton } from '#core/base/process-singleton.ts'
import type { Services } from '#core/base/services.ts'
import { keysChannel } from './keys.ts'

/** Access to the OAuth library for modules that only pass requests to it. */

/** Loads the library on first use: it takes 80 ms of CPU time and 6 MB. */
const loadLibrary = () => import('./provider.ts')

type ProviderHolder = { get(): Promise<Provider>; close(): void }

/** The provider of this process, created at the first request and recreated when the signing key changes. */
const providerHolder = processSingleton(
  (services): ProviderHolder => {
    let current: Promise<Provider> | undefined
    const drop = () => {
      current = undefined
    }
    const createCurrent = async () => (await loadLibrary()).createProvider(services)
    const unlisten = services.notifications.listen(keysChannel, drop, { onReconnect: drop })
    return {
      get() {
        current ??= createCurrent().catch(error => {
          drop()
          throw error
        })
        return current
      },
      close: unlisten,
    }
  },
  provider => provider.close(),
)

export const providerOf = (services: Services): Promise<Provider> => providerHolder(services).get()

type Handler = ReturnType<Provider['callback']>

const handlers = new WeakMap<Provider, Handler>()

/** Returns the request handler of the protocol endpoints. */
export async function handlerOf(services: Services): Promise<Handler> {
  const provider = await providerOf(services)
  const handler = handlers.get(provider) ?? provider.callback()
  handlers.set(provider, handler)
  return handler
}
