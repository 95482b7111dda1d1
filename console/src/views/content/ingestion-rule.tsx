import { Anchor, Group, Stack, Table, Text } from '@mantine/core'
import type { File as FileRecord, IngestionRule } from '@muster/client'
import {
  deleteIngestionRule,
  getIngestionRule,
  listFiles,
  listGenerations,
  listIngestionRules,
  updateIngestionRule,
} from '@muster/client/operations'
import { IconEdit } from '@tabler/icons-react'
import { useQuery } from '@tanstack/react-query'
import { Link } from '@tanstack/react-router'
import { useIds } from '#address.ts'
import { api } from '#api.ts'
import { ActionButton, FormButton } from '#components/actions.tsx'
import type { Read } from '#components/guarded-save.tsx'
import { RecordLink, TableHead } from '#components/list.tsx'
import { Page } from '#components/page.tsx'
import { Facts, IdLine, LabelledValues, Section } from '#components/record.tsx'
import { RemoveButton } from '#components/record-page.tsx'
import { Loaded } from '#components/states.tsx'
import { StatusBadge } from '#components/status.tsx'
import { sizeText, visible, When } from '#components/text.tsx'
import { usePermissions, useProjectId } from '#projects.ts'
import * as strings from '#strings.ts'
import { IngestionRuleForm, readRule } from './ingestion-rule-form.tsx'
import { Converter } from './ingestion-rules.tsx'

const texts = strings.ingestionRules

/** Newest files of the folder that are compared with the rules. */
const READ_FILES = 100
/** Rules that are read to find the rule of a file. */
const READ_RULES = 500
const SHOWN_FILES = 25

/** An ingestion rule: its folder, its converter, and the files that it matches. */
export function IngestionRuleView() {
  const { ruleId } = useIds()
  const rule = useQuery<Read<IngestionRule>>({
    queryKey: ['ingestion-rule', ruleId],
    queryFn: ({ signal }) => readRule(ruleId, signal),
  })
  return (
    <Loaded query={rule} operation={getIngestionRule}>
      {read => <RulePage read={read} />}
    </Loaded>
  )
}

function RulePage({ read }: { read: Read<IngestionRule> }) {
  const projectId = useProjectId()
  const isAllowed = usePermissions(projectId)
  const { id, content_type_glob, path_prefix, enabled } = read.record
  const mayUpdate = isAllowed(updateIngestionRule)
  return (
    <Page
      title={content_type_glob}
      intro={
        <Group gap="sm">
          <StatusBadge status={enabled ? 'active' : 'inactive'} label={enabled ? texts.enabled : texts.disabled} />
          {visible(path_prefix ?? texts.everywhere)}
        </Group>
      }
      actions={
        <>
          <RemoveButton
            operation={deleteIngestionRule}
            ids={{ ingestion_rule_id: id }}
            question={texts.deleteText}
            stale={[['ingestion-rules', projectId]]}
            list="ingestion-rules"
          />
          {mayUpdate && (
            <ActionButton
              label={enabled ? texts.turnOff : texts.turnOn}
              size="sm"
              run={async () => updateIngestionRule(api, { ingestion_rule_id: id, enabled: !enabled })}
              stale={[['ingestion-rule', id], ['ingestion-rules']]}
            />
          )}
          {mayUpdate && (
            <FormButton
              label={strings.edit}
              leftSection={<IconEdit size={16} />}
              form={close => <IngestionRuleForm first={read} onDone={close} onCancel={close} />}
            />
          )}
        </>
      }
    >
      <Settings rule={read.record} />
      {isAllowed(listFiles) && isAllowed(listIngestionRules) && <Matches rule={read.record} />}
    </Page>
  )
}

function Settings({ rule }: { rule: IngestionRule }) {
  const projectId = useProjectId()
  const isAllowed = usePermissions(projectId)
  const { id, agent_id, tool_id, action, preset_parameters, native_extraction, file_delivery, metadata } = rule
  const { chunk_strategy, chunk_unit, chunk_size, chunk_overlap, search_language, updated_at } = rule
  return (
    <Section title={texts.one}>
      <Facts
        facts={[
          [texts.converter, <Converter key="by" agent_id={agent_id} tool_id={tool_id} />],
          [texts.action, action && visible(action)],
          [texts.native, texts.natives[native_extraction]],
          [texts.delivery, tool_id && texts.deliveries[file_delivery]],
          [texts.strategy, chunk_strategy],
          [texts.unit, chunk_unit],
          [texts.size, chunk_size?.toLocaleString()],
          [texts.overlap, chunk_overlap?.toLocaleString()],
          [texts.language, search_language && visible(search_language)],
          [strings.updated, <When key="updated" at={updated_at} />],
        ]}
      />
      <LabelledValues
        values={[
          [texts.presets, preset_parameters],
          [texts.metadata, metadata],
        ]}
      />
      {agent_id && isAllowed(listGenerations) && (
        <Anchor
          component={Link}
          to={`/p/${projectId}/traces`}
          search={{ source: 'ingestion', agent: agent_id } as never}
          underline="always"
        >
          {texts.turns}
        </Anchor>
      )}
      <IdLine id={id} />
    </Section>
  )
}

/** Whether a media type matches a pattern, in which `*` is any text. */
function matchesGlob(glob: string, type: string): boolean {
  const [first, ...rest] = glob.split('*')
  if (rest.length === 0) return type === glob
  const last = rest.pop() as string
  if (!type.startsWith(first) || !type.endsWith(last)) return false
  let at = first.length
  for (const part of rest) {
    const found = type.indexOf(part, at)
    if (found < 0) return false
    at = found + part.length
  }
  return at <= type.length - last.length
}

const starsOf = (glob: string): number => glob.split('*').length - 1

/** Returns the rule that the service applies to a file: the longest folder, the fewest `*`, the longest pattern. */
function ruleFor(rules: IngestionRule[], { content_type, path }: FileRecord): IngestionRule | undefined {
  if (content_type === null) return undefined
  const type = content_type.split(';')[0].trim().toLowerCase()
  const length = (prefix: string | null) => prefix?.length ?? 0
  return rules
    .filter(
      ({ enabled, content_type_glob: glob, path_prefix: prefix }) =>
        enabled && matchesGlob(glob, type) && (prefix === null || path === prefix || path?.startsWith(`${prefix}/`)),
    )
    .sort(
      (one, other) =>
        length(other.path_prefix) - length(one.path_prefix) ||
        starsOf(one.content_type_glob) - starsOf(other.content_type_glob) ||
        other.content_type_glob.length - one.content_type_glob.length ||
        (one.content_type_glob < other.content_type_glob ? -1 : 1),
    )[0]
}

/** The newest files to which a rule applies. */
function Matches({ rule: { id, path_prefix } }: { rule: IngestionRule }) {
  const projectId = useProjectId()
  const read = useQuery({
    queryKey: ['ingestion-rule', id, 'files'],
    queryFn: async ({ signal }) => {
      const args = { project_id: projectId }
      const prefix = path_prefix === null ? {} : { path_prefix }
      const [files, rules] = await Promise.all([
        listFiles(api, { ...args, ...prefix, limit: READ_FILES }, { signal }).page(),
        listIngestionRules(api, args, { signal }).all({ max: READ_RULES }),
      ])
      return { count: files.data.length, files: files.data.filter(file => ruleFor(rules, file)?.id === id) }
    },
  })
  return (
    <Section title={texts.matched}>
      <Loaded query={read} operation={listFiles}>
        {({ count, files }) => (
          <Stack gap="md">
            <Text size="sm" c="dimmed">
              {texts.matchedText(count)}
            </Text>
            {files.length === 0 ? (
              <Text>{texts.noMatch}</Text>
            ) : (
              <Table verticalSpacing="sm" horizontalSpacing="md" className="rows" aria-label={texts.matched}>
                <TableHead titles={[texts.path, texts.type, strings.files.size, strings.updated]} />
                <Table.Tbody>
                  {files.slice(0, SHOWN_FILES).map(({ id: fileId, path, filename, content_type, size, updated_at }) => (
                    <Table.Tr key={fileId}>
                      <Table.Td className="wide">
                        <RecordLink to={`/p/${projectId}/files/${fileId}`}>{visible(path ?? filename)}</RecordLink>
                      </Table.Td>
                      <Table.Td data-title={texts.type}>
                        <Text inherit>{visible(content_type ?? strings.none)}</Text>
                      </Table.Td>
                      <Table.Td data-title={strings.files.size}>
                        {size === null ? strings.none : sizeText(size)}
                      </Table.Td>
                      <Table.Td data-title={strings.updated}>
                        <When at={updated_at} />
                      </Table.Td>
                    </Table.Tr>
                  ))}
                </Table.Tbody>
              </Table>
            )}
          </Stack>
        )}
      </Loaded>
    </Section>
  )
}
