import { createHmac } from 'node:crypto'

/** Signs reasoning, so that a text that was changed on its way back is refused. */
export const sign = (text: string): string => createHmac('sha256', 'vendor').update(text).digest('base64')

/** Encrypts reasoning for a test: the text is readable, and a change of it is not. */
export const seal = (text: string): string => {
  const content = Buffer.from(text).toString('base64')
  return `${content}.${sign(content)}`
}

/** Returns whether a sealed text is unchanged. */
export function isSealed(sealed: unknown): boolean {
  const [content, signature] = String(sealed).split('.')
  return content !== undefined && signature === sign(content)
}
