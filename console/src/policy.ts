type Rules = { createHTML(text: string): string; createScriptURL(url: string): string }
type Policies = { createPolicy(name: string, rules: Rules): unknown }

/** The only script that is started by its address: the worker that lays out graphs. */
const WORKER = /^\/app\/assets\/layout-worker-[\w-]+\.js$/

/**
 * Creates the only Trusted Types policy. The component library sets the text of its styles as HTML; markup is refused,
 * and the address of every script but the layout worker.
 */
export function admitTextOnly(): void {
  const { trustedTypes } = globalThis as { trustedTypes?: Policies }
  trustedTypes?.createPolicy('default', {
    createHTML(text) {
      if (text.includes('<')) throw new TypeError('markup is not allowed')
      return text
    },
    createScriptURL(url) {
      const { origin, pathname } = new URL(url, location.origin)
      if (origin !== location.origin || !WORKER.test(pathname)) throw new TypeError('the script is not allowed')
      return url
    },
  })
}
