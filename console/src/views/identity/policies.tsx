import { Badge, Button, Stack } from '@mantine/core'
import type { Policy } from '@muster/client'
import { createPolicy, listPolicies } from '@muster/client/operations'
import { IconPlus, IconShieldCheck } from '@tabler/icons-react'
import { Link } from '@tanstack/react-router'
import type { ReactNode } from 'react'
import { api } from '#api.ts'
import { type Column, ListView, NameCell, SearchField, useList } from '#components/list.tsx'
import { Page } from '#components/page.tsx'
import { AddressTabs, Section } from '#components/record.tsx'
import { Simulation } from '#components/simulation.tsx'
import { Notice } from '#components/states.tsx'
import { When } from '#components/text.tsx'
import { usePermissions, useProjectId } from '#projects.ts'
import * as strings from '#strings.ts'

const texts = strings.policies

/** Policies of the deployment, and the simulation of a request. */
export function Policies() {
  const projectId = useProjectId()
  const isAllowed = usePermissions(projectId)
  const create = isAllowed(createPolicy) && (
    <Button component={Link} to={`/p/${projectId}/policies/new`} leftSection={<IconPlus size={16} />}>
      {texts.create}
    </Button>
  )
  return (
    <Page title={strings.nav.policies} intro={texts.intro} actions={create}>
      <AddressTabs
        tabs={[
          { value: 'list', title: strings.nav.policies, content: () => <List create={create} /> },
          {
            value: 'simulate',
            title: texts.simulate,
            content: () => (
              <Section title={texts.simulate}>
                <Simulation projectId={projectId} />
              </Section>
            ),
          },
        ]}
      />
    </Page>
  )
}

function List({ create }: { create: ReactNode }) {
  const projectId = useProjectId()
  const list = useList<Policy>(['policies', 'list'], async ({ q }, bounds, signal) =>
    listPolicies(api, { name: q, ...bounds }, { signal }).page(),
  )
  const columns: Column<Policy>[] = [
    {
      title: strings.name,
      isWide: true,
      cell: ({ id, name, description }) => (
        <NameCell to={`/p/${projectId}/policies/${id}`} name={name ?? id} description={description} />
      ),
    },
    {
      title: texts.statements,
      cell: ({ document }) => document.statement.length,
    },
    {
      title: strings.version,
      cell: ({ version, managed }) => (managed ? <Badge variant="default">{texts.managed}</Badge> : version),
    },
    { title: strings.updated, cell: ({ updated_at }) => <When at={updated_at} /> },
  ]
  return (
    <Stack gap="lg">
      <ListView
        label={strings.nav.policies}
        list={list}
        operation={listPolicies}
        columns={columns}
        fields={<SearchField />}
        empty={
          <Notice icon={<IconShieldCheck />} title={texts.empty} action={create} color="indigo">
            {texts.emptyText}
          </Notice>
        }
      />
    </Stack>
  )
}
