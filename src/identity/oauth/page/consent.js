/* The consent page: signs a user in, shows what a client asks for, and records the decision. The token of the user stays in
   the memory of the page. */

const byId = id => document.getElementById(id)
const requestId = new URLSearchParams(location.search).get('request_id')
/** Base path: the page may be served below a path. */
const root = new URL('..', location.href)
const LINK_USED = 'This link was used before, or is too old. Sign in with the username and the password.'
/** Session storage key for the secret of a sign-in at the provider, until the browser returns. */
const VERIFIER = `verifier ${requestId}`

const SIGN_IN_ERRORS = {
  access_denied: 'Your company account was refused.',
  no_account: 'Your company account is not linked to a user here. Ask an administrator to link it.',
  provider_error: 'The sign-in with your company account failed. Try again, or sign in with a password.',
  expired: 'The sign-in with your company account took too long. Try again.',
}
/** What a sign-in to a program of this deployment is for; the request itself is shown after the sign-in. */
const OWN_CLIENTS = {
  'muster-console': 'Sign in to open the console of this deployment.',
  'muster-cli': 'Sign in to use the command line. You confirm its request next.',
}
const GONE =
  'This request was already decided, has expired, or was started in another browser. Start again in the application.'

let token = null
let info = null
/** Whether the user requested a different account than the one signed in. */
let isSwitching = false

const show = (id, isShown = true) => {
  byId(id).hidden = !isShown
}
const write = (id, text) => {
  byId(id).textContent = text
}

/** Creates an element with attributes and children; children that are not elements become text. */
const element = (name, attributes, ...children) => {
  const made = Object.assign(document.createElement(name), attributes)
  made.append(...children)
  return made
}

async function call(method, path, body) {
  const response = await fetch(new URL(`api/v1${path}`, root), {
    method,
    headers: {
      ...(token ? { authorization: `Bearer ${token}` } : {}),
      ...(body ? { 'content-type': 'application/json' } : {}),
    },
    body: body ? JSON.stringify(body) : undefined,
  })
  const answer = await response.json().catch(() => ({}))
  if (!response.ok)
    throw Object.assign(new Error(answer.error?.message ?? 'The request failed. Try again.'), {
      status: response.status,
    })
  return answer
}

/** Creates a choice; a choice requested by the client is marked and preselected. */
const checkbox = (name, value, isAsked, label, detail) =>
  element(
    'label',
    {},
    element('input', { type: 'checkbox', name, value, checked: isAsked }),
    element(
      'span',
      {},
      label,
      ...(isAsked ? [' ', element('mark', {}, 'asked for')] : []),
      ...(detail ? [element('small', {}, detail)] : []),
    ),
  )

/** Display names of modules. */
const titled = module => {
  const words = module.replaceAll(/[_-]/g, ' ').replace(/^(ai|mcp)\b/, initials => initials.toUpperCase())
  return words[0].toUpperCase() + words.slice(1)
}
const counted = (count, noun) => `${count} ${noun}${count === 1 ? '' : 's'}`

/** Returns a summary of the selection. */
function summaryOf(form) {
  const kind = form.get('kind')
  const modules = form.getAll('modules').length
  const actions = form.getAll('actions').length
  if (kind === 'modules') return `${counted(modules, 'module')} chosen`
  if (kind === 'actions') return `${counted(actions, 'action')} chosen`
  return ''
}

/** Shows the selection of the current tier. */
function showTier() {
  const form = new FormData(byId('consent'))
  show('modules', form.get('kind') === 'modules')
  show('actions', form.get('kind') === 'actions')
  write('summary', summaryOf(form))
  for (const group of byId('actions').children) {
    const boxes = [...group.querySelectorAll('input')]
    group.querySelector('output').textContent = `${boxes.filter(({ checked }) => checked).length} of ${boxes.length}`
  }
}

/** Preselects exactly the scopes requested by the client. */
function showChoices({ projects, modules, request }) {
  const options = projects.map(({ id, name }) => element('option', { value: id }, name))
  const hint = projects.length === 0 ? 'You have no project' : 'Choose a project'
  if (projects.length !== 1) options.unshift(element('option', { value: '', disabled: true, selected: true }, hint))
  byId('project').replaceChildren(...options)

  const asked = request.requested_scopes.filter(scope => scope.includes(':') && scope !== 'mcp:access')
  const isAsked = (module, action) => asked.includes(action) || asked.includes(`${module}:*`)
  // Requested modules come first.
  const askedOf = ({ module, actions }) => Number(actions.some(({ action }) => isAsked(module, action)))
  const sorted = modules.toSorted(
    (one, other) => askedOf(other) - askedOf(one) || one.module.localeCompare(other.module),
  )
  byId('modules').replaceChildren(
    ...sorted.map(({ module }) => checkbox('modules', module, asked.includes(`${module}:*`), titled(module))),
  )
  byId('actions').replaceChildren(
    ...sorted.map(({ module, actions }) =>
      element(
        'details',
        { open: actions.some(({ action }) => asked.includes(action)) },
        element('summary', {}, element('span', {}, titled(module)), element('output', {})),
        ...actions.map(({ action, description }) =>
          checkbox('actions', action, isAsked(module, action), description, action),
        ),
      ),
    ),
  )
  const kind = request.requested_scopes.includes('*')
    ? 'all'
    : asked.length === 0
      ? null
      : asked.every(scope => scope.endsWith(':*'))
        ? 'modules'
        : 'actions'
  if (kind) document.querySelector(`input[name="kind"][value="${kind}"]`).checked = true
  showTier()
}

/** Whether a text has visible characters. */
const isVisible = text => /[^\p{C}\p{Z}\p{M}]/u.test(text ?? '')

function showRequest(username) {
  const { request } = info
  const name = isVisible(request.client_name) ? request.client_name : request.client_id
  byId('title').replaceChildren(element('bdi', { id: 'client-name' }, name), ' asks for access')
  write('client-host', request.client_host ?? 'Not verified')
  write('redirect-host', request.redirect_host ?? 'The device')
  write('username', username)
  show('unverified', request.client_kind === 'registered')
  show('loopback', request.loopback)
  show('warnings', request.loopback || request.client_kind === 'registered')
  show('device', request.device !== null)
  if (request.device) {
    write('user-code', request.device.user_code)
    write('device-ip', request.device.ip)
    write('device-agent', isVisible(request.device.user_agent) ? request.device.user_agent : 'a program without a name')
  }
  const actsAsUser = request.requested_scopes.includes('muster:user')
  show('as-user', actsAsUser)
  show('identity', !request.needs_project && !actsAsUser)
  show('choices', request.needs_project)
  byId('choices').disabled = !request.needs_project
  if (request.needs_project) showChoices(info)
  show('sign-in', false)
  show('consent')
  // Does not focus the decision, so that the user reads the request first.
  byId('title').focus()
}

function selectionOf(form) {
  const kind = form.get('kind')
  if (kind !== 'modules' && kind !== 'actions') return { kind }
  const chosen = form.getAll(kind)
  if (chosen.length === 0) throw new Error(`Choose at least one of the ${kind}.`)
  return { kind, [kind]: chosen }
}

async function decide(decision) {
  const form = new FormData(byId('consent'))
  const chosen =
    decision === 'approve' && info.request.needs_project
      ? {
          project_id: form.get('project'),
          selection: selectionOf(form),
          ...(form.get('days') ? { expires_in_days: Number(form.get('days')) } : {}),
        }
      : {}
  const { redirect_to } = await call('POST', '/oauth/consent', { request_id: requestId, decision, ...chosen }).catch(
    refused,
  )
  location.assign(redirect_to)
}

/** Shows that the request no longer exists. */
function refused(error) {
  if (error.status !== 404) throw error
  show('sign-in', false)
  show('consent', false)
  throw new Error(GONE)
}

async function signIn(credentials, refusal = 'This sign-in is not right. Check the username and the password.') {
  const user = await call('POST', '/users/login', credentials).catch(error => {
    throw error.status === 401 ? new Error(refusal) : error
  })
  token = user.token
  info = await call('GET', `/oauth/consent-info?request_id=${encodeURIComponent(requestId)}`).catch(refused)
  // The console is part of the deployment: signing in to it is the consent.
  if (info.request.client_id === 'muster-console' && !info.request.needs_project) return decide('approve')
  showRequest(user.username)
}

const base64url = bytes =>
  btoa(String.fromCharCode(...new Uint8Array(bytes)))
    .replaceAll('+', '-')
    .replaceAll('/', '_')
    .replaceAll('=', '')

/** Redirects to the company's provider, which returns the browser to this request. */
async function leaveForCompany() {
  const verifier = base64url(crypto.getRandomValues(new Uint8Array(32)))
  const digest = await crypto.subtle.digest('SHA-256', new TextEncoder().encode(verifier))
  sessionStorage.setItem(VERIFIER, verifier)
  const start = new URL('oauth/oidc/start', root)
  start.searchParams.set('return_to', `/oauth/consent?request_id=${requestId}`)
  start.searchParams.set('code_challenge', base64url(digest))
  if (isSwitching) start.searchParams.set('prompt', 'select_account')
  location.assign(start)
}

/** Completes the sign-in with the result of the company's provider. */
async function returnFromCompany(answer) {
  const verifier = sessionStorage.getItem(VERIFIER)
  sessionStorage.removeItem(VERIFIER)
  history.replaceState(null, '', location.pathname + location.search)
  const code = answer.get('oidc_code')
  if (!code) throw new Error(SIGN_IN_ERRORS[answer.get('error')] ?? SIGN_IN_ERRORS.provider_error)
  if (!verifier) throw new Error(SIGN_IN_ERRORS.provider_error)
  await signIn({ oidc_code: code, code_verifier: verifier })
}

/** Signs in with a link that was opened. */
async function followLink(token) {
  history.replaceState(null, '', location.pathname + location.search)
  await signIn({ sign_in_link: token }, LINK_USED)
}

function askForSignIn() {
  token = null
  info = null
  write('title', 'Sign in')
  byId('password').reset()
  show('consent', false)
  show('sign-in')
  byId('password').elements.username.focus()
}

/** Runs one user action at a time and shows its failure. */
const guarded = work => async event => {
  event.preventDefault()
  write('message', '')
  const buttons = document.querySelectorAll('button')
  for (const button of buttons) button.disabled = true
  try {
    await work(event)
  } catch (error) {
    write('message', error.message)
    byId('message').scrollIntoView({ block: 'center' })
  } finally {
    for (const button of buttons) button.disabled = false
  }
}

byId('password').addEventListener(
  'submit',
  guarded(({ target }) => signIn(Object.fromEntries(new FormData(target)))),
)
byId('consent').addEventListener(
  'submit',
  guarded(({ submitter }) => decide(submitter.value)),
)
byId('consent').addEventListener('change', showTier)
byId('switch').addEventListener(
  'click',
  guarded(() => {
    isSwitching = true
    askForSignIn()
  }),
)
byId('company-sign-in').addEventListener('click', guarded(leaveForCompany))

write('deployment', location.host)
const lead = OWN_CLIENTS[new URLSearchParams(location.search).get('client')]
if (lead) write('lead', lead)
if (requestId) {
  askForSignIn()
  const answer = new URLSearchParams(location.hash.slice(1))
  if (answer.has('sign_in_link')) guarded(() => followLink(answer.get('sign_in_link')))(new Event('load'))
  if (answer.has('oidc_code') || answer.has('error')) guarded(() => returnFromCompany(answer))(new Event('load'))
} else write('message', 'Open this page from the application that requests access.')
