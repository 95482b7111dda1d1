/* The consent page: signs a user in, shows what a client asks for, and records the decision. The token of the user stays in
   the memory of the page. */

const byId = id => document.getElementById(id)
const requestId = new URLSearchParams(location.search).get('request_id')

let token = null
let info = null

const say = text => {
  byId('message').textContent = text
}

async function call(method, path, body) {
  // Relative to /oauth/consent: a proxy may serve the deployment under a path.
  const response = await fetch(`../api/v1${path}`, {
    method,
    headers: {
      ...(token ? { authorization: `Bearer ${token}` } : {}),
      ...(body ? { 'content-type': 'application/json' } : {}),
    },
    body: body ? JSON.stringify(body) : undefined,
  })
  const answer = await response.json()
  if (!response.ok) throw new Error(answer.error?.message ?? 'The request failed')
  return answer
}

const checkbox = (name, value, label, checked) => {
  const element = document.createElement('label')
  const input = document.createElement('input')
  input.type = 'checkbox'
  input.name = name
  input.value = value
  input.checked = checked
  element.append(input, ` ${label}`)
  return element
}

/** Shows what is chosen under the tier that is selected. */
function showTier() {
  const kind = new FormData(byId('consent')).get('kind')
  byId('modules').hidden = kind !== 'modules'
  byId('actions').hidden = kind !== 'actions'
}

/** Preselects what the client asked for, and nothing beyond it. */
function showChoices({ projects, modules, request }) {
  byId('project').replaceChildren(
    ...projects.map(({ id, name }) => {
      const option = document.createElement('option')
      option.value = id
      option.textContent = name
      return option
    }),
  )
  const asked = request.requested_scopes.filter(scope => scope.includes(':') && scope !== 'mcp:access')
  byId('modules').replaceChildren(
    ...modules.map(({ module }) => checkbox('modules', module, module, asked.includes(`${module}:*`))),
  )
  byId('actions').replaceChildren(
    ...modules.flatMap(({ module, actions }) =>
      actions.map(({ action, description }) =>
        checkbox(
          'actions',
          action,
          `${action} – ${description}`,
          asked.includes(action) || asked.includes(`${module}:*`),
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

function showRequest() {
  const { request } = info
  byId('client-name').textContent = request.client_name ?? request.client_id
  byId('client-host').textContent = request.client_host ?? 'unknown'
  byId('redirect-host').textContent = request.redirect_host ?? 'the device'
  byId('unverified').hidden = request.client_kind !== 'registered'
  byId('loopback').hidden = !request.loopback
  byId('device').hidden = request.device === null
  if (request.device) {
    byId('user-code').textContent = request.device.user_code
    byId('device-ip').textContent = request.device.ip
    byId('device-agent').textContent = request.device.user_agent
  }
  const actsAsUser = request.requested_scopes.includes('muster:user')
  byId('as-user').hidden = !actsAsUser
  byId('identity').hidden = request.needs_project || actsAsUser
  byId('choices').hidden = !request.needs_project
  byId('sign-in').hidden = true
  byId('consent').hidden = false
  if (request.needs_project) showChoices(info)
}

function selectionOf(form) {
  const kind = form.get('kind')
  if (kind === 'modules') return { kind, modules: form.getAll('modules') }
  if (kind === 'actions') return { kind, actions: form.getAll('actions') }
  return kind ? { kind } : undefined
}

async function decide(decision) {
  const form = new FormData(byId('consent'))
  const chosen =
    decision === 'approve' && info.request.needs_project
      ? {
          project_id: form.get('project') ?? undefined,
          selection: selectionOf(form),
          ...(form.get('days') ? { expires_in_days: Number(form.get('days')) } : {}),
        }
      : {}
  const { redirect_to } = await call('POST', '/oauth/consent', { request_id: requestId, decision, ...chosen })
  location.assign(redirect_to)
}

async function signIn(credentials) {
  ;({ token } = await call('POST', '/users/login', credentials))
  info = await call('GET', `/oauth/consent-info?request_id=${encodeURIComponent(requestId)}`)
  // The console is part of the deployment, and whoever signs in to it wants it to act for him.
  if (info.request.client_id === 'muster-console' && !info.request.needs_project) return decide('approve')
  showRequest()
}

const guarded = work => async event => {
  event.preventDefault()
  say('')
  try {
    await work(event)
  } catch (error) {
    say(error.message)
  }
}

byId('sign-in').addEventListener(
  'submit',
  guarded(({ target }) => signIn(Object.fromEntries(new FormData(target)))),
)
byId('consent').addEventListener(
  'submit',
  guarded(({ submitter }) => decide(submitter.value)),
)
byId('consent').addEventListener('change', showTier)

if (requestId) byId('sign-in').hidden = false
else say('Open this page from the application that asks for access.')
