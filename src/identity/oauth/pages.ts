import { readFileSync } from 'node:fs'
import type { Client, KoaContextWithOIDC } from 'oidc-provider'
import type { Config } from '#core/base/config.ts'
import type { Services } from '#core/base/services.ts'
import { withIcon } from '#core/docs/icon.ts'
import { basePath } from '#core/http/base-path.ts'
import { isEnabled } from '../company-sign-in/provider.ts'

/** HTML pages: short pages for the steps of the library, and the static consent page. */

/** Headers of all pages: no framing, no external resources, no caching. */
export const PAGE_HEADERS: Record<string, string> = {
  'Content-Security-Policy':
    "default-src 'none'; img-src data:; script-src 'self'; style-src 'self'; connect-src 'self'; form-action 'self'; frame-ancestors 'none'; base-uri 'none'",
  'X-Frame-Options': 'DENY',
  'Referrer-Policy': 'no-referrer',
  'Cache-Control': 'no-store',
}

export const escapeHtml = (text: string): string =>
  text.replace(
    /[&<>"']/g,
    character => ({ '&': '&amp;', '<': '&lt;', '>': '&gt;', '"': '&quot;', "'": '&#39;' })[character] as string,
  )

export const renderPage = (config: Config, title: string, body: string): string =>
  withIcon(`<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>${title} – Muster</title><link rel="stylesheet" href="${basePath(config)}/oauth/consent.css"></head>
<body><header class="brand">Muster <span>${escapeHtml(new URL(config.BASE_URL).host)}</span></header>
<main><h1>${title}</h1>${body}</main></body></html>`)

function renderInto({ config }: Services, ctx: KoaContextWithOIDC, title: string, body: string): void {
  ctx.type = 'html'
  ctx.body = renderPage(config, title, body)
}

/** Shows an error that must not be sent to the client. */
export function oauthErrorPage(
  services: Services,
  ctx: KoaContextWithOIDC,
  out: { error: string; error_description?: string },
): void {
  const { error, error_description: description = '' } = out
  renderInto(
    services,
    ctx,
    'This request cannot continue',
    `<p>The request of the application was refused: <code>${escapeHtml(error)}</code></p>
<p class="notice danger">${escapeHtml(description)}</p>`,
  )
}

const CODE_WARNING =
  'The operator of this service never sends you such a code. Continue only if you started the sign-in yourself and your device shows the same code.'

/** Shows the form for the code of a device. */
export async function userCodePage(
  services: Services,
  ctx: KoaContextWithOIDC,
  form: string,
  error: { name?: string; status?: number } | undefined,
): Promise<void> {
  const session = ctx.oidc.session as { exp?: number; touched?: boolean } | undefined
  if (error && session && session.exp === undefined) {
    // The library cannot store the form's state in a session that starts with an error.
    session.touched = false
    ctx.redirect(ctx.oidc.urlFor('code_verification'))
    ctx.status = 303
    return
  }
  const prompt = !error
    ? 'Enter the code that your device shows.'
    : error.name === 'AbortedError'
      ? 'The sign-in of the device was cancelled. You may close this page.'
      : error.name === 'AlreadyUsedError'
        ? 'This code has already been used. Start again on your device.'
        : error.status === 429
          ? 'Too many codes were tried. Try again in ten minutes.'
          : 'This code is not valid. Check it, or start again on your device.'
  renderInto(
    services,
    ctx,
    'Connect a device',
    `<p>${prompt}</p><div class="field">${withLabel(withoutHandlers(form))}</div>
<button type="submit" class="primary wide" form="op.deviceInputForm">Continue</button>`,
  )
}

/** Removes inline handlers, which the content security policy of the pages blocks. */
const withoutHandlers = (form: string): string => form.replace(/ (onfocus|autofocus)(="[^"]*")?/g, '')

const withLabel = (form: string): string => form.replace('type="text"', 'type="text" aria-label="Code of the device"')

export function userCodeConfirmPage(
  services: Services,
  ctx: KoaContextWithOIDC,
  form: string,
  { client, info, userCode }: { client: Client; info: Record<string, unknown>; userCode: string },
): void {
  renderInto(
    services,
    ctx,
    'Confirm the device',
    `<p>The device shows this code:</p><p class="code">${escapeHtml(userCode)}</p>
<dl><dt>Application</dt><dd><bdi>${escapeHtml(client.clientName ?? client.clientId)}</bdi></dd>
<dt>Address of the device</dt><dd>${escapeHtml(String(info.ip ?? ''))}</dd>
<dt>Program</dt><dd><bdi>${escapeHtml(String(info.user_agent ?? ''))}</bdi></dd></dl>
<p class="notice warning">${CODE_WARNING}</p>${form}
<div class="decision"><button type="submit" form="op.deviceConfirmForm" value="yes" name="abort">Cancel</button>
<button type="submit" class="primary" form="op.deviceConfirmForm">Continue</button></div>`,
  )
}

export function userCodeDonePage(services: Services, ctx: KoaContextWithOIDC): void {
  renderInto(services, ctx, 'The device is connected', '<p>You may close this page.</p>')
}

const fileOf = (name: string): string => readFileSync(new URL(`page/${name}`, import.meta.url), 'utf8')

/** Returns the consent page and its assets; the page offers company sign-in if it is configured. */
export function staticFiles(config: Config): Record<string, { type: string; body: string }> {
  const page = withIcon(fileOf('consent.html'))
  return {
    '/oauth/consent': {
      type: 'text/html; charset=utf-8',
      body: isEnabled(config) ? page.replace('<div id="company" hidden>', '<div id="company">') : page,
    },
    '/oauth/consent.js': { type: 'text/javascript; charset=utf-8', body: fileOf('consent.js') },
    '/oauth/consent.css': { type: 'text/css; charset=utf-8', body: fileOf('consent.css') },
  }
}
