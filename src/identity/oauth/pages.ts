import { readFileSync } from 'node:fs'
import type { Client, KoaContextWithOIDC } from 'oidc-provider'
import { basePath } from '../signed-cookies.ts'

/** HTML that people see: short pages of the library's steps, and the consent page, which is static. */

/** Headers of every page. No page of ours is framed, loads anything from elsewhere, or is kept. */
export const PAGE_HEADERS: Record<string, string> = {
  'Content-Security-Policy':
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; form-action 'self'; frame-ancestors 'none'; base-uri 'none'",
  'X-Frame-Options': 'DENY',
  'Referrer-Policy': 'no-referrer',
  'X-Content-Type-Options': 'nosniff',
  'Cache-Control': 'no-store',
}

export const escapeHtml = (text: string): string =>
  text.replace(
    /[&<>"']/g,
    character => ({ '&': '&amp;', '<': '&lt;', '>': '&gt;', '"': '&quot;', "'": '&#39;' })[character] as string,
  )

/** A page of a deployment whose address is `baseUrl`. */
export const pageOf = (baseUrl: string, title: string, body: string): string => `<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>${title}</title><link rel="stylesheet" href="${basePath({ BASE_URL: baseUrl })}/oauth/consent.css"></head>
<body><main><h1>${title}</h1>${body}</main></body></html>`

function show(ctx: KoaContextWithOIDC, title: string, body: string): void {
  ctx.type = 'html'
  ctx.body = pageOf(ctx.oidc.issuer, title, body)
}

/** A failure that must not be sent to the client. */
export function errorPage(ctx: KoaContextWithOIDC, out: { error: string; error_description?: string }): void {
  const { error, error_description: description = '' } = out
  show(
    ctx,
    'This request cannot continue',
    `<p>The application sent a request that is refused: <code>${escapeHtml(error)}</code></p><p>${escapeHtml(description)}</p>`,
  )
}

const NEVER_SENT =
  'Nobody who runs this service ever sends you such a code. Continue only if you started the sign-in yourself and the code on your device is the same.'

/** Where the code of a device is typed. */
export async function userCodePage(
  ctx: KoaContextWithOIDC,
  form: string,
  error: { name?: string; status?: number } | undefined,
): Promise<void> {
  const session = ctx.oidc.session as { exp?: number; touched?: boolean } | undefined
  if (error && session && session.exp === undefined) {
    // The library cannot store what it would check the form by in a session that begins with an error.
    session.touched = false
    ctx.redirect(ctx.oidc.urlFor('code_verification'))
    ctx.status = 303
    return
  }
  const told = !error
    ? 'Enter the code that your device shows.'
    : error.name === 'AbortedError'
      ? 'The sign-in of the device was ended. You may close this page.'
      : error.name === 'AlreadyUsedError'
        ? 'This code was used already. Start again on your device.'
        : error.status === 429
          ? 'Too many codes were tried. Try again in ten minutes.'
          : 'This code is not valid. Check it, or start again on your device.'
  show(
    ctx,
    'Connect a device',
    `<p>${told}</p>${withoutHandlers(form)}<p><button type="submit" form="op.deviceInputForm">Continue</button></p>`,
  )
}

/** The policy of our pages runs no scripts of attributes. */
const withoutHandlers = (form: string): string => form.replace(/ (onfocus|autofocus)(="[^"]*")?/g, '')

export function userCodeConfirmPage(
  ctx: KoaContextWithOIDC,
  form: string,
  { client, info, userCode }: { client: Client; info: Record<string, unknown>; userCode: string },
): void {
  show(
    ctx,
    'Confirm the device',
    `<p>The device shows this code:</p><p class="code">${escapeHtml(userCode)}</p>
<dl><dt>Application</dt><dd><bdi>${escapeHtml(client.clientName ?? client.clientId)}</bdi></dd>
<dt>Address of the device</dt><dd>${escapeHtml(String(info.ip ?? ''))}</dd>
<dt>Program</dt><dd><bdi>${escapeHtml(String(info.user_agent ?? ''))}</bdi></dd></dl>
<p class="warning">${NEVER_SENT}</p>${form}
<p><button type="submit" form="op.deviceConfirmForm" value="yes" name="abort">Cancel</button>
<button type="submit" form="op.deviceConfirmForm">Continue</button></p>`,
  )
}

export function userCodeDonePage(ctx: KoaContextWithOIDC): void {
  show(ctx, 'The device is connected', '<p>You may close this page.</p>')
}

/** The consent page and what it loads. */
export const STATIC: Record<string, { type: string; body: Buffer }> = Object.fromEntries(
  [
    ['/oauth/consent', 'consent.html', 'text/html; charset=utf-8'],
    ['/oauth/consent.js', 'consent.js', 'text/javascript; charset=utf-8'],
    ['/oauth/consent.css', 'consent.css', 'text/css; charset=utf-8'],
  ].map(([path, file, type]) => [path, { type, body: readFileSync(new URL(`page/${file}`, import.meta.url)) }]),
)
