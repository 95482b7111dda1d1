// The search. Its index is requested when the field is used.
const form = document.querySelector('form[role=search]')
const input = form.querySelector('input')
const list = form.querySelector('ul')
const MAX_RESULTS = 12
let loading

const load = async () => {
  const [{ default: MiniSearch }, response] = await Promise.all([
    import(new URL('minisearch.js', import.meta.url).href),
    fetch(form.dataset.index),
  ])
  if (!response.ok) throw new Error(`search index: ${response.status}`)
  const { options, index, targets } = await response.json()
  const addresses = targets.map(target => new URL(target, response.url).href)
  return { search: MiniSearch.loadJS(index, options), targets: addresses }
}

const element = (name, text) => Object.assign(document.createElement(name), { textContent: text })

const item = ({ id, title, context }, targets) => {
  const link = element('a', title)
  link.href = targets[id]
  link.append(element('small', context))
  const entry = document.createElement('li')
  entry.append(link)
  return entry
}

async function show() {
  const query = input.value.trim()
  loading ??= load()
  const { search, targets } = await loading
  if (query !== input.value.trim()) return
  // A name is one term, too: createAgent, agents create, RESOURCE_NOT_FOUND.
  const terms = query && `${query} ${query.replace(/[^a-z0-9]/gi, each => `z${' _.:-'.indexOf(each)}z`)}`
  const exact = terms ? search.search(terms) : []
  const found = (exact.length > 0 ? exact : search.search(query, { fuzzy: 0.2 })).slice(0, MAX_RESULTS)
  list.replaceChildren(...found.map(each => item(each, targets)))
  if (query && found.length === 0) list.append(element('li', 'Nothing found'))
}

form.hidden = false
form.addEventListener('submit', event => {
  event.preventDefault()
  list.querySelector('a')?.click()
})
input.addEventListener('focus', () => {
  loading ??= load()
})
input.addEventListener('input', () => void show())
document.addEventListener('keydown', event => {
  if (event.key === 'Escape') list.replaceChildren()
  if (event.key !== '/' || event.target.closest('input, textarea')) return
  event.preventDefault()
  input.focus()
})
