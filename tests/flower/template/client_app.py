"""The template's client."""

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from tests.flower.template import task

app = ClientApp()

CPU = torch.device("cpu")


def _begin(message: Message, context: Context):
    """The received model, and this node's examples."""
    net = task.Net()
    net.load_state_dict(message.content["arrays"].to_torch_state_dict())
    node, run = context.node_config, context.run_config
    return net, *task.load_data(node["partition-id"], node["num-partitions"], run["batch-size"])


@app.train()
def train(message: Message, context: Context) -> Message:
    net, trainloader, _ = _begin(message, context)
    epochs, lr = context.run_config["local-epochs"], message.content["config"]["lr"]
    loss = task.train(net, trainloader, epochs, lr, CPU)
    told = {"train_loss": loss, "num-examples": len(trainloader.dataset)}
    records = {"arrays": ArrayRecord(net.state_dict()), "metrics": MetricRecord(told)}
    return Message(RecordDict(records), reply_to=message)


@app.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    net, _, valloader = _begin(message, context)
    loss, accuracy = task.test(net, valloader, CPU)
    told = {"eval_loss": loss, "eval_acc": accuracy, "num-examples": len(valloader.dataset)}
    return Message(RecordDict({"metrics": MetricRecord(told)}), reply_to=message)
