import type Provider from 'oidc-provider'
import { processSingleton } from '../../core/process/process-singleton.ts'
import type { Services } from '../../core/process/services.ts'
import { keysChannel } from './keys.ts'

/** The library that speaks the protocol, for who only hands requests to it. */

/** Processes without such requests do without it: it takes 80 ms of processor time and 6 MB to load. */
const library = () => import('./provider.ts')

type Opened = { get(): Promise<Provider>; close(): void }

/** The provider of a process, made at the first request; again when another key signs. */
const opened = processSingleton(
  (services): Opened => {
    let made: Promise<Provider> | undefined
    const drop = () => {
      made = undefined
    }
    const make = async () => (await library()).createProvider(services)
    const unlisten = services.notifications.listen(keysChannel, drop, { onReconnect: drop })
    return {
      get() {
        made ??= make().catch(error => {
          drop()
          throw error
        })
        return made
      },
      close: unlisten,
    }
  },
  provider => provider.close(),
)

export const providerOf = (services: Services): Promise<Provider> => opened(services).get()

type Handler = ReturnType<Provider['callback']>

const handlers = new WeakMap<Provider, Handler>()

/** What answers requests to the endpoints of the protocol. */
export async function handlerOf(services: Services): Promise<Handler> {
  const provider = await providerOf(services)
  const handler = handlers.get(provider) ?? provider.callback()
  handlers.set(provider, handler)
  return handler
}
