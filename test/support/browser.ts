type Cookie = { value: string; path: string }

export type BrowserReply = { status: number; location: string | null; headers: Headers; body: string }

/**
 * What a browser does in a flow of redirects: it keeps the cookies of each origin and sends those that fit a path.
 * @param options.served where public addresses are served in this test, by what they begin with
 * @param options.headers what it sends everywhere
 */
export class Browser {
  readonly #served: [string, string][]
  readonly #headers: Record<string, string>
  readonly #jars = new Map<string, Map<string, Cookie>>()

  constructor(options: { served?: Record<string, string>; headers?: Record<string, string> } = {}) {
    this.#served = Object.entries(options.served ?? {})
    this.#headers = options.headers ?? {}
  }

  /** The cookies of an origin by name. */
  cookies(origin: string): Map<string, Cookie> {
    const jar = this.#jars.get(origin) ?? new Map()
    this.#jars.set(origin, jar)
    return jar
  }

  /** One request; a redirect is the answer, its location absolute. */
  async get(address: string): Promise<BrowserReply> {
    const url = new URL(address)
    const jar = this.cookies(url.origin)
    const sent = [...jar].filter(([, { path }]) => url.pathname === path || url.pathname.startsWith(withSlash(path)))
    const [base, server] = this.#served.find(([base]) => url.href.startsWith(base)) ?? ['', '']
    const response = await fetch(`${server}${url.href.slice(base.length).split('#', 1)[0]}`, {
      redirect: 'manual',
      headers: {
        ...this.#headers,
        ...(sent.length > 0 ? { cookie: sent.map(([name, { value }]) => `${name}=${value}`).join('; ') } : {}),
      },
    })
    for (const header of response.headers.getSetCookie()) {
      const [pair, ...attributes] = header.split(/; */)
      const [name, value] = [pair.slice(0, pair.indexOf('=')), pair.slice(pair.indexOf('=') + 1)]
      const attribute = (wanted: string) =>
        attributes.find(each => each.toLowerCase().startsWith(`${wanted}=`))?.slice(wanted.length + 1)
      const expires = attribute('expires')
      if (expires && new Date(expires).getTime() <= Date.now()) jar.delete(name)
      else jar.set(name, { value, path: attribute('path') ?? '/' })
    }
    const location = response.headers.get('location')
    return {
      status: response.status,
      location: location && new URL(location, url).href,
      headers: response.headers,
      body: await response.text(),
    }
  }

  /** Follows redirects until one leads to an address that `isLast` accepts, and returns that address. */
  async follow(address: string, isLast: (url: URL) => boolean): Promise<string> {
    let at = address
    for (let hops = 0; hops < 20; hops++) {
      if (isLast(new URL(at))) return at
      const { status, location, body } = await this.get(at)
      if (!location) throw new Error(`${at} answered ${status}: ${body.slice(0, 300)}`)
      at = location
    }
    throw new Error(`too many redirects from ${address}`)
  }
}

const withSlash = (path: string): string => (path.endsWith('/') ? path : `${path}/`)
