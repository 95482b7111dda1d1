import { Alert, Anchor, Button, Checkbox, Group, List, Stack, Table, Text, TextInput } from '@mantine/core'
import type { Project } from '@muster/client'
import { cloneProject, exportTemplate } from '@muster/client/operations'
import { IconCopy, IconDownload, IconFileExport } from '@tabler/icons-react'
import { Link } from '@tanstack/react-router'
import { useState } from 'react'
import { api } from '#api.ts'
import { useAction } from '#components/actions.tsx'
import { useDraft, useSent } from '#components/draft.tsx'
import { TableHead } from '#components/list.tsx'
import { Page } from '#components/page.tsx'
import { Section } from '#components/record.tsx'
import { saveAs } from '#components/save.ts'
import { FailureAlert } from '#components/states.tsx'
import { visible } from '#components/text.tsx'
import { Value } from '#components/value.tsx'
import { isObject } from '#json.ts'
import { useMe, useProjectId } from '#projects.ts'
import * as strings from '#strings.ts'

const texts = strings.projectCopy

type Kind = keyof typeof texts.kinds
const KINDS = Object.keys(texts.kinds) as Kind[]

/** Export of the configuration of a project, and for admins its clone. */
export function ProjectCopy() {
  const { data: me } = useMe()
  return (
    <Page title={strings.nav.projectCopy} intro={texts.intro}>
      {me?.role === 'admin' && <Clone />}
      <Export />
    </Page>
  )
}

type Cloned = { project: Project; ids: Record<string, unknown>; include: Kind[] }

function Clone() {
  const projectId = useProjectId()
  const draft = useDraft('clone', { name: '', include: KINDS })
  const { name, include } = draft.value
  const set = (change: Partial<typeof draft.value>) => draft.setValue(all => ({ ...all, ...change }))
  const clone = useAction<void, Cloned>({
    run: async () => ({
      ...(await cloneProject(api, { project_id: projectId, name: name.trim(), include })),
      include,
    }),
    stale: [['projects']],
  })
  const submitted = useSent(draft, clone)
  return (
    <Section title={texts.clone}>
      <Text c="dimmed">{texts.cloneText}</Text>
      <form
        onSubmit={event => {
          event.preventDefault()
          submitted()
          clone.mutate()
        }}
      >
        <Stack gap="md">
          <TextInput
            label={texts.name}
            value={name}
            onChange={event => set({ name: event.currentTarget.value })}
            required
            maw={480}
          />
          <Checkbox.Group
            label={texts.include}
            value={include}
            onChange={next => set({ include: KINDS.filter(kind => next.includes(kind)) })}
          >
            <Group gap="lg" my="xs">
              {KINDS.map(kind => (
                <Checkbox key={kind} value={kind} label={texts.kinds[kind]} />
              ))}
            </Group>
          </Checkbox.Group>
          <Group gap="xs">
            <Button variant="default" size="xs" onClick={() => set({ include: KINDS })}>
              {texts.all}
            </Button>
            <Button variant="default" size="xs" onClick={() => set({ include: [] })}>
              {texts.nothing}
            </Button>
          </Group>
          <Text size="sm" c="dimmed">
            {texts.never} {texts.references}
          </Text>
          {clone.error && <FailureAlert error={clone.error} />}
          <Group>
            <Button
              type="submit"
              leftSection={<IconCopy size={16} />}
              loading={clone.isPending}
              disabled={!name.trim()}
            >
              {texts.clone}
            </Button>
          </Group>
        </Stack>
      </form>
      <div role="status">
        {clone.isPending && <Text size="sm">{texts.cloning}</Text>}
        {clone.data && <CloneResult {...clone.data} />}
      </div>
    </Section>
  )
}

/** The size of a clone, and the kinds that it does not contain. */
function CloneResult({ project, ids, include }: Cloned) {
  const left = KINDS.filter(kind => !include.includes(kind)).map(kind => texts.kinds[kind])
  return (
    <Alert color="teal" title={texts.cloned(visible(project.name), Object.keys(ids).length)}>
      <Stack gap="xs">
        {left.length > 0 && <Text size="sm">{texts.leftOut(left.join(', '))}</Text>}
        <Text size="sm">{texts.never}</Text>
        <Anchor component={Link} to={`/p/${project.id}/start`} size="sm" underline="always">
          {texts.openProject}
        </Anchor>
      </Stack>
    </Alert>
  )
}

type Exported = { template: Record<string, unknown>; parameters: Record<string, unknown>; warnings: string[] }

function Export() {
  const projectId = useProjectId()
  const [hasContent, setContent] = useState(false)
  const made = useAction<void, Exported>({
    run: async () => exportTemplate(api, { project_id: projectId, ...(hasContent ? { include: ['content'] } : {}) }),
  })
  return (
    <Section title={texts.export}>
      <Text c="dimmed">{texts.exportText}</Text>
      <Checkbox
        label={texts.content}
        description={texts.contentHelp}
        checked={hasContent}
        onChange={event => setContent(event.currentTarget.checked)}
      />
      <Group>
        <Button leftSection={<IconFileExport size={16} />} onClick={() => made.mutate()} loading={made.isPending}>
          {texts.export}
        </Button>
      </Group>
      {made.error && <FailureAlert error={made.error} />}
      <Text role="status" size="sm">
        {made.isPending && texts.exporting}
        {made.data && texts.exported(resourcesOf(made.data).length)}
      </Text>
      {made.data && <ExportResult {...made.data} />}
    </Section>
  )
}

const resourcesOf = ({ template }: Exported): { type: string }[] =>
  isObject(template.resources) ? (Object.values(template.resources) as { type: string }[]) : []

/** A template with its parameters, and the values that it does not contain. */
function ExportResult(exported: Exported) {
  const { template, parameters, warnings } = exported
  const counts = new Map<string, number>()
  for (const { type } of resourcesOf(exported)) counts.set(type, (counts.get(type) ?? 0) + 1)
  return (
    <Stack gap="md">
      <Group>
        <Button
          variant="default"
          leftSection={<IconDownload size={16} />}
          onClick={() => saveAs([JSON.stringify(template, null, 2)], texts.file)}
        >
          {texts.download}
        </Button>
      </Group>
      <Table verticalSpacing="xs" className="rows" aria-label={texts.resources} maw={480}>
        <TableHead titles={[texts.type, texts.resources]} />
        <Table.Tbody>
          {[...counts].map(([type, count]) => (
            <Table.Tr key={type}>
              <Table.Td className="wide mono">{visible(type)}</Table.Td>
              <Table.Td data-title={texts.resources}>{count.toLocaleString()}</Table.Td>
            </Table.Tr>
          ))}
        </Table.Tbody>
      </Table>
      <Stack gap={4}>
        <Text fw={600}>{texts.warnings}</Text>
        {warnings.length === 0 && <Text>{texts.nothingLeftOut}</Text>}
        <List size="sm">
          {warnings.map(warning => (
            <List.Item key={warning}>{visible(warning)}</List.Item>
          ))}
        </List>
      </Stack>
      {Object.keys(parameters).length > 0 && (
        <Stack gap={4}>
          <Text fw={600}>{texts.parameters}</Text>
          <Text size="sm" c="dimmed">
            {texts.parametersText}
          </Text>
          <Value value={parameters} label={texts.parameters} />
        </Stack>
      )}
      <Stack gap={4}>
        <Text fw={600}>{texts.template}</Text>
        <Value value={template} label={texts.template} />
      </Stack>
    </Stack>
  )
}
