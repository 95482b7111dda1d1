type Cookie = { name: string; value: string; path: string }

export type BrowserReply = { status: number; location: string | null; headers: Headers; body: string }

/**
 * The part of a browser in a flow of redirects: it keeps the cookies of each origin and sends those that fit a path.
 * @param options.served where public addresses are served in this test, by their prefix
 * @param options.headers headers of every request
 */
export class Browser {
  readonly #served: [string, string][]
  readonly #headers: Record<string, string>
  readonly #jars = new Map<string, readonly Cookie[]>()

  constructor(options: { served?: Record<string, string>; headers?: Record<string, string> } = {}) {
    this.#served = Object.entries(options.served ?? {})
    this.#headers = options.headers ?? {}
  }

  /** The cookies of an origin. */
  cookies(origin: string): readonly Cookie[] {
    return this.#jars.get(origin) ?? []
  }

  /** A cookie of an origin by its name. */
  cookie(origin: string, name: string): Cookie {
    const found = this.cookies(origin).find(cookie => cookie.name === name)
    if (!found) throw new Error(`${origin} has no cookie ${name}`)
    return found
  }

  /** Keeps cookies, each in place of the earlier cookie of its name and path. */
  keep(origin: string, ...cookies: Cookie[]): void {
    for (const cookie of cookies) this.#jars.set(origin, [...this.#without(origin, cookie), cookie])
  }

  #without(origin: string, { name, path }: Cookie): Cookie[] {
    return this.cookies(origin).filter(cookie => cookie.name !== name || cookie.path !== path)
  }

  /** The header of cookies for an address. */
  header(address: string | URL): string {
    const { origin, pathname } = new URL(address)
    return this.cookies(origin)
      .filter(({ path }) => pathname === path || pathname.startsWith(withSlash(path)))
      .map(({ name, value }) => `${name}=${value}`)
      .join('; ')
  }

  /** One request; redirects are not followed. */
  async send(address: string | URL, init: RequestInit = {}): Promise<Response> {
    const url = new URL(address)
    const headers = new Headers({ ...this.#headers, ...Object.fromEntries(new Headers(init.headers)) })
    const cookie = this.header(url)
    if (cookie) headers.set('cookie', cookie)
    const [base, server] = this.#served.find(([base]) => url.href.startsWith(base)) ?? ['', '']
    const target = `${server}${url.href.slice(base.length).split('#', 1)[0]}`
    const response = await fetch(target, { ...init, headers, redirect: 'manual' })
    for (const line of response.headers.getSetCookie()) {
      const [pair, ...attributes] = line.split(/; */)
      const at = pair.indexOf('=')
      const path = attributes.find(each => each.toLowerCase().startsWith('path='))?.slice('path='.length) ?? '/'
      const cookie = { name: pair.slice(0, at), value: pair.slice(at + 1), path }
      // A server clears a cookie by one without a value.
      if (cookie.value === '') this.#jars.set(url.origin, this.#without(url.origin, cookie))
      else this.keep(url.origin, cookie)
    }
    return response
  }

  /** One request with its answer read; the location of a redirect is absolute. */
  async get(address: string): Promise<BrowserReply> {
    const response = await this.send(address)
    const location = response.headers.get('location')
    return {
      status: response.status,
      location: location && new URL(location, address).href,
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
