type Policies = { createPolicy(name: string, rules: { createHTML(text: string): string }): unknown }

/** Creates the only Trusted Types policy. The component library sets the text of its styles as HTML; markup is refused. */
export function admitTextOnly(): void {
  const { trustedTypes } = globalThis as { trustedTypes?: Policies }
  trustedTypes?.createPolicy('default', {
    createHTML(text) {
      if (text.includes('<')) throw new TypeError('markup is not allowed')
      return text
    },
  })
}
