import type { OperationTool } from './registry.ts'

/** Ranking of tools for a task described in a few words. */

/** Words of users for words of tool names: all words of a line match the first one. */
const SYNONYMS = `
delete remove erase drop destroy
create make add new register mint setup build define open store set
get read show fetch see view look open display inspect
list show all every enumerate browse which
update change edit modify rename adjust alter move
search find lookup query
cancel stop abort end kill
start run launch execute begin
run execution process
approve accept confirm permit
reject decline deny refuse
send post write say
upload store save put import
download fetch content bytes export
secret credential password token
key apikey token
provider vendor llm openai anthropic
agent assistant bot
generation reply turn response answer output ask
generate reply answer respond ask chat
decision decide ask
document text page article
chunk piece passage
file attachment upload
actor customer person persona enduser
session conversation chat
message chat
webhook callback subscription endpoint
delivery sent attempt
quota limit cap budget token
usage cost spend spent tokens consumption
price cost tariff rate
audit log who
orchestration graph flow
workflow kanban state
case ticket incident
eval evaluation benchmark test
dataset examples testset
trigger schedule cron timer
fire run trigger
approval review pending
guardrail safety rule
memory fact remember knowledge
entry statement
knowledge semantic meaning documents
share publish lend
policy permission right
permission right may allowed
user account people human
exception alert problem error attention
event happened
schema structure validation
rotate renew replace
restore revert rollback back
compare diff difference
clone copy duplicate
me myself own who whoami
call run execute invoke
timeline history happened
history timeline happened
transcript steps detail
trace steps
step task
human person manual
input answer
tool function integration
embedding vector
route fallback
release canary rollout
threshold alarm warn
task todo item
pause freeze hold suspend
resume continue unpause
receipt bill invoice
transition move advance
board overview
diagram draw picture
fork branch
member item row
playbook procedure runbook
ingest index process searchable
check try verify
`
  .trim()
  .split('\n')
  .map(line => line.split(' ').map(stem))

const STOP = new Set(
  'a an the of to for in on at by with and or is are be was my our your its it this that these those i we you please want need some any from into as do does can how what has have had not'.split(
    ' ',
  ),
)

/** Weight of a word by its position in a tool. */
const NAME = 4
const TITLE = 2
const MODULE = 1
const DESCRIPTION = 0.7
/** Factor for a synonym. */
const SYNONYM = 0.8
/** Bonus for a tool whose name is fully covered by the query. */
const FULL_NAME_BONUS = 6

/** Returns the stem that inflected forms of a word share. */
function stem(word: string): string {
  const singular = word
    .replace(/ies$/, 'y')
    .replace(/sses$/, 'ss')
    .replace(/([^su])s$/, '$1')
  return (singular.length > 5 ? singular.replace(/(ation|ing|ion|ed)$/, '') : singular).replace(/e$/, '')
}

const wordsOf = (text: string): string[] =>
  text
    .toLowerCase()
    .split(/[^a-z0-9]+/)
    .filter(word => word !== '' && !STOP.has(word))
    .map(stem)

type Entry = { name: Set<string>; title: Set<string>; module: Set<string>; description: Set<string> }

/** Words of each tool, computed once. */
const entries = new WeakMap<OperationTool, Entry>()

function entryOf(tool: OperationTool): Entry {
  const cached = entries.get(tool)
  if (cached) return cached
  const entry = {
    name: new Set(wordsOf(tool.name)),
    title: new Set(wordsOf(tool.title)),
    module: new Set(wordsOf(tool.module)),
    description: new Set(wordsOf(tool.description)),
  }
  entries.set(tool, entry)
  return entry
}

/** Returns the name words of which a query word is a synonym. */
const meaningsOf = (word: string): string[] => SYNONYMS.filter(line => line.includes(word)).map(([first]) => first)

function weightIn({ name, title, module, description }: Entry, word: string): number {
  if (name.has(word)) return NAME
  if (title.has(word)) return TITLE
  if (module.has(word)) return MODULE
  return description.has(word) ? DESCRIPTION : 0
}

/** Returns the tools that match a query, best first, ties by name. */
export function rankTools(query: string, tools: readonly OperationTool[]): OperationTool[] {
  const words = [...new Set(wordsOf(query))].map(word => ({ word, meanings: meaningsOf(word) }))
  const entriesOf = tools.map(entryOf)
  const rarity = (word: string): number => {
    const count = entriesOf.filter(({ name }) => name.has(word)).length
    return Math.log(1 + tools.length / (1 + count))
  }
  const weights = words.map(({ word, meanings }) => ({
    word: { word, rarity: rarity(word) },
    meanings: meanings.map(each => ({ word: each, rarity: rarity(each) })),
  }))
  const scored = tools.map((tool, index) => {
    const entry = entriesOf[index]
    const covered = new Set<string>()
    let score = 0
    for (const { word, meanings } of weights) {
      let best = weightIn(entry, word.word) * word.rarity
      if (entry.name.has(word.word)) covered.add(word.word)
      for (const synonym of meanings) {
        best = Math.max(best, SYNONYM * weightIn(entry, synonym.word) * synonym.rarity)
        if (entry.name.has(synonym.word)) covered.add(synonym.word)
      }
      score += best
    }
    return { tool, score: score === 0 ? 0 : score + (FULL_NAME_BONUS * covered.size) / entry.name.size }
  })
  return scored
    .filter(({ score }) => score > 0)
    .sort((a, b) => b.score - a.score || (a.tool.name < b.tool.name ? -1 : 1))
    .map(({ tool }) => tool)
}
