// What pages have with their script: search, tabs of examples, and buttons that copy. The index of the search is requested when
// its field is used.
import { find, termsOf } from './query.js'

const form = document.querySelector('form[role=search]')
const input = form.querySelector('input')
const list = form.querySelector('ul')
const MAX_RESULTS = 12
/** Results that show the sentence that was found; each requests the text of its page. */
const QUOTED = 5
let loading

const load = async () => {
  const [{ default: MiniSearch }, response] = await Promise.all([
    import(new URL('minisearch.js', import.meta.url).href),
    fetch(form.dataset.index),
  ])
  if (!response.ok) throw new Error(`search index: ${response.status}`)
  const { options, index, synonyms, targets } = await response.json()
  const addresses = targets.map(target => new URL(target, response.url).href)
  return { search: MiniSearch.loadJS(index, options), synonyms, targets: addresses }
}

const element = (name, text = '') => Object.assign(document.createElement(name), { textContent: text })

const pages = new Map()

/** The Markdown of a page, requested once. */
function textOf(address) {
  const page = address.replace(/(\.html)?(#.*)?$/, '.md')
  if (!pages.has(page))
    pages.set(
      page,
      fetch(page).then(response => (response.ok ? response.text() : '')),
    )
  return pages.get(page)
}

/** A line of Markdown without its markup. */
const plain = line =>
  line
    .replace(/\[([^\]]*)\]\([^)]*\)/g, '$1')
    .replace(/^[#>\s-]+|[`*]/g, '')
    .replace(/\s*\|\s*/g, ' ')
    .trim()

/** The sentence of a section that has most of the terms; empty if none has one. */
function sentenceOf(text, heading, terms) {
  const parts = text.replace(/^```.*?^```$/gms, '').split(/^(?=#+ )/m)
  const section = parts.find(part => plain(part.split('\n')[0]) === heading) ?? ''
  const sentences = section
    .split('\n')
    .slice(1)
    .join('\n')
    .split(/\n\n|\n(?=[|-])|(?<=[.:])\s/)
    .map(plain)
  const countIn = sentence => terms.filter(term => sentence.toLowerCase().includes(term)).length
  const best = sentences.reduce((found, each) => (countIn(each) > countIn(found) ? each : found), '')
  return best.slice(0, 240)
}

async function quote(entry, link, terms) {
  const sentence = sentenceOf(await textOf(link.href), entry.title, terms)
  if (!sentence) return
  const small = element('small')
  const pattern = new RegExp(`(${terms.map(term => term.replace(/\W/g, '\\$&')).join('|')})`, 'i')
  for (const [index, part] of sentence.split(pattern).entries())
    small.append(index % 2 === 1 ? element('mark', part) : part)
  link.append(small)
}

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
  const { search, synonyms, targets } = await loading
  if (query !== input.value.trim()) return
  const found = find(search, synonyms, query).slice(0, MAX_RESULTS)
  const items = found.map(each => item(each, targets))
  list.replaceChildren(...items)
  if (query && found.length === 0) list.append(element('li', 'Nothing found'))
  for (const [index, entry] of found.slice(0, QUOTED).entries())
    if (entry.isText) void quote(entry, items[index].firstChild, termsOf(entry))
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
// Arrow keys move between the field and the results.
form.addEventListener('keydown', event => {
  const step = { ArrowDown: 1, ArrowUp: -1 }[event.key]
  if (!step) return
  event.preventDefault()
  const stops = [input, ...list.querySelectorAll('a')]
  stops[(stops.indexOf(document.activeElement) + step + stops.length) % stops.length].focus()
})
document.addEventListener('keydown', event => {
  if (event.key === 'Escape') list.replaceChildren()
  if (event.key !== '/' || event.target.closest('input, textarea')) return
  event.preventDefault()
  input.focus()
})

const VARIANTS = ['curl', 'TypeScript', 'Python', 'CLI']
const STORED = 'muster-docs-language'

/** The choice of the reader; a browser may refuse storage. */
function storedChoice() {
  try {
    return localStorage.getItem(STORED)
  } catch {
    return null
  }
}

function storeChoice(name) {
  try {
    localStorage.setItem(STORED, name)
  } catch {}
}

/** The name of the example that a paragraph introduces. */
const variantOf = paragraph =>
  paragraph?.matches('p') && paragraph.childNodes.length === 1 && VARIANTS.includes(paragraph.textContent)
    ? paragraph.textContent
    : null

/** The examples that follow each other, as groups of their names and blocks. */
function exampleGroups() {
  const groups = []
  for (const pre of document.querySelectorAll('main p + pre')) {
    const label = pre.previousElementSibling
    const name = variantOf(label)
    if (!name) continue
    const last = groups.at(-1)
    if (last?.at(-1).pre === label.previousElementSibling) last.push({ name, label, pre })
    else groups.push([{ name, label, pre }])
  }
  return groups.filter(group => group.length > 1)
}

const tabLists = []

/** Chooses a name in each list of tabs that has it. */
function choose(name) {
  for (const tabs of tabLists.filter(each => each.some(tab => tab.textContent === name)))
    for (const tab of tabs) {
      const isChosen = tab.textContent === name
      tab.setAttribute('aria-selected', isChosen)
      tab.tabIndex = isChosen ? 0 : -1
      document.getElementById(tab.getAttribute('aria-controls')).hidden = !isChosen
    }
}

/** Makes tabs of the examples of a group. */
function addTabs(group, number) {
  const tabList = element('div')
  tabList.setAttribute('role', 'tablist')
  tabList.setAttribute('aria-label', 'Client')
  group[0].label.before(tabList)
  const tabs = group.map(({ name, label, pre }) => {
    const [tab, panel] = [element('button', name), element('div')]
    tab.id = `tab.${number}.${name}`
    panel.id = `example.${number}.${name}`
    for (const [key, value] of Object.entries({ type: 'button', role: 'tab', 'aria-controls': panel.id }))
      tab.setAttribute(key, value)
    panel.setAttribute('role', 'tabpanel')
    panel.setAttribute('aria-labelledby', tab.id)
    pre.before(panel)
    panel.append(pre)
    label.remove()
    tabList.append(tab)
    return tab
  })
  tabLists.push(tabs)
  const pick = tab => {
    const { top } = tab.getBoundingClientRect()
    choose(tab.textContent)
    storeChoice(tab.textContent)
    tab.focus()
    // Groups above have another height.
    scrollBy(0, tab.getBoundingClientRect().top - top)
  }
  tabList.addEventListener('click', event => event.target.role === 'tab' && pick(event.target))
  tabList.addEventListener('keydown', event => {
    const at = tabs.indexOf(event.target)
    const next = { ArrowRight: at + 1, ArrowLeft: at - 1, Home: 0, End: -1 }[event.key]
    if (next === undefined) return
    event.preventDefault()
    pick(tabs.at(next % tabs.length))
  })
}

for (const [number, group] of exampleGroups().entries()) addTabs(group, number)
choose(VARIANTS[0])
const stored = storedChoice()
if (stored) choose(stored)

/** Adds a button that copies the block. Browsers offer the clipboard on https and localhost only. */
function addCopyButton(pre) {
  const [frame, button] = [element('div'), element('button', 'Copy')]
  frame.className = 'code'
  Object.assign(button, { type: 'button', className: 'copy', ariaLive: 'polite' })
  button.addEventListener('click', async () => {
    await navigator.clipboard.writeText(pre.textContent.trimEnd())
    button.textContent = 'Copied'
    setTimeout(() => {
      button.textContent = 'Copy'
    }, 2000)
  })
  pre.before(frame)
  frame.append(pre, button)
}
if (navigator.clipboard) for (const pre of document.querySelectorAll('main pre')) addCopyButton(pre)
// The height of the page has changed since the browser went to the anchor.
if (location.hash) document.getElementById(decodeURIComponent(location.hash.slice(1)))?.scrollIntoView()
